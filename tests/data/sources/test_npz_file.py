"""A user's own arrays."""

import numpy as np
import pytest
import torch

from helpers.tasks import row_hashes
from immunis import InputError
from immunis.data.sources.npz_file import npz


def test_rows_of_an_npz_file_are_shared_out_within_each_class(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 4
    for name in ("p.npz", "h.npz"):
        np.savez(tmp_path / name, x_train=x, y_train=y, x_test=x, y_test=y)
    tasks = npz("p.npz", "h.npz", folder=str(tmp_path))
    assert tasks.harmful.classes == tasks.attacker.classes == (0, 1, 2, 3)
    assert not set(row_hashes(tasks.harmful.train)) & set(row_hashes(tasks.attacker.train))
    for bad in (x[:30], x[:, :1].repeat(2, 0)):
        np.savez(tmp_path / "b.npz", x_train=bad, y_train=y)
        with pytest.raises(InputError, match="pair up one to one"):
            npz("p.npz", "b.npz", folder=str(tmp_path))
    np.savez(tmp_path / "b.npz", x_train=x, y_train=np.array(3))
    with pytest.raises(InputError, match="pair up one to one"):
        npz("p.npz", "b.npz", folder=str(tmp_path))
    np.savez(tmp_path / "r.npz", x_train=x, y_train=x)  # two targets or more: every second row
    halves = npz("p.npz", "r.npz", folder=str(tmp_path))
    assert [len(t.train.tensors()[0]) for t in (halves.harmful, halves.attacker)] == [20, 20]
    assert torch.equal(halves.harmful.train.tensors()[0], torch.from_numpy(x[::2]))
