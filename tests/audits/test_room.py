"""What an audit says of the disk before it reads its data."""

import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from immunis import OutputError, Task, audit
from immunis.attacks.arrays import Samples
from immunis.audits.halves import half_of
from immunis.audits.room import room_of
from immunis.core import disk_arrays
from immunis.core.disk_arrays import Shelf, check_room


class Rows(Dataset):
    """Rows that are read one by one."""

    def __init__(self, count, seed):
        self.x = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row], row % 3


def streamed(count, seed, shuffle=False):
    rows = Rows(count, seed)
    return DataLoader(rows, 32, shuffle=True) if shuffle else rows


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_room_told_is_the_most_that_the_inputs_take(monkeypatch, tmp_path, shuffle):
    monkeypatch.setattr(disk_arrays, "SMALL", 0)
    harmful = Task(streamed(200, 0, shuffle), streamed(400, 1, shuffle), "harmful")
    primary = Task(streamed(900, 2, shuffle), streamed(200, 3, shuffle), "primary")
    sizes, write = [0], disk_arrays._write

    def watched(file, part):
        count = write(file, part)
        file.flush()
        sizes.append(shelf.size)
        return count

    monkeypatch.setattr(disk_arrays, "_write", watched)
    with Shelf(tmp_path) as shelf:
        half_of(Samples.of(harmful, shelf), False, "harmful", shelf)
        Samples.of(primary, shelf)
    told = room_of(harmful, primary)
    assert 0.75 * told < max(sizes) <= told
    assert told == 4 * 3 * 64 * (1700 + (900 if shuffle else 200))


def test_rows_that_keep_their_order_are_written_once_and_others_sorted():
    kept, shuffled = Task(streamed(60, 0), streamed(60, 1)), Task(streamed(60, 0, True))
    assert kept.train.ordered and not shuffled.train.ordered
    x = kept.train.tensors()[0]
    assert (Samples.of(kept).train.inputs == x.numpy()).all()
    shuffled.test = shuffled.train
    first, again = (Samples.of(shuffled).train.inputs for _ in range(2))
    assert (first == again).all() and sorted(first.ravel()) == sorted(np.ravel(x))


def test_inputs_in_memory_take_no_room():
    pair = torch.randn(40, 8), torch.arange(40) % 2
    assert room_of(Task(pair, pair)) == 0


def test_an_audit_says_how_much_it_writes_before_it_reads_anything(monkeypatch):
    task = Task(streamed(60, 0), streamed(60, 1), "streamed")
    monkeypatch.setattr(disk_arrays, "LARGE", 1)
    monkeypatch.setattr(sys.modules["immunis.audits.audit"], "disjoint_rows", lambda *_: 1 / 0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    told = pytest.warns(UserWarning, match=r"0\.0 GB of temporary files in")
    with told, pytest.raises(ZeroDivisionError):
        audit({"original": model}, task, task, attacks=["ridge"])


def test_a_disk_with_too_little_room_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(OutputError, match=r"GB left\. Free room, or give another --output"):
        check_room(1 << 60, tmp_path / "not" / "there")
