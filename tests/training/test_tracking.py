"""Training curves."""

import sys

import pytest

from helpers.training import run


def test_curves_are_written_for_tensorboard_and_their_lack_is_told(tmp_path, monkeypatch):
    run("probe", folder=tmp_path / "with")
    assert list(tmp_path.glob("with/events.out.tfevents.*"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.warns(UserWarning, match="TensorBoard is not installed: no curves"):
        run("probe", folder=tmp_path / "without")
