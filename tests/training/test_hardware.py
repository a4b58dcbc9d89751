"""Devices, precision, compilation: what is refused, and what changes nothing."""

import math
import shutil

import pytest
import torch

from helpers.networks import tasks
from helpers.training import SHORT, objective, run, whole, with_a_scaler
from immunis import NumericalError, SettingsError
from immunis.training.hardware import Hardware
from immunis.training.loop import _check_finite
from immunis.training.setup import prepare


def test_half_precision_without_a_scaler_stops_at_bad_gradients():
    goal = objective("probe")
    made = prepare(whole(), goal, *tasks(), SHORT, Hardware(precision="16-mixed"), 0)
    with pytest.raises(NumericalError, match="the gradient is not finite"):
        _check_finite(made, {"rho": 1.0}, math.nan)


def test_training_refuses_a_device_without_float64():
    with pytest.raises(SettingsError, match="MPS has not: use --device cpu"):
        run("probe", hardware=Hardware(device="mps"))


@pytest.mark.parametrize("name", ["imma", "condition", "probe"])
def test_a_loss_scale_changes_nothing_but_rounding(name, monkeypatch):
    hardware = Hardware(precision="bf16-mixed")
    plain = run(name, hardware=hardware)
    monkeypatch.setattr("immunis.training.hardware.Hardware.fabric", with_a_scaler(Hardware.fabric))
    scaled = run(name, hardware=hardware)
    assert scaled.weights == pytest.approx(plain.weights, rel=1e-3)
    for one, two in zip(plain.history, scaled.history, strict=True):
        assert two["rho"] == pytest.approx(one["rho"], abs=5e-3)
    for key, before in plain.model.state_dict().items():
        assert torch.allclose(before, scaled.model.state_dict()[key], atol=2e-3), key


def test_unusable_hardware_is_refused():
    with pytest.raises(SettingsError):
        run("probe", hardware=Hardware(device="cuda" if not torch.cuda.is_available() else "mps"))


@pytest.mark.parametrize(
    "hardware",
    [
        Hardware(precision="bf16-mixed"),
        pytest.param(Hardware(compile=True), marks=pytest.mark.slow),
    ],
)
def test_mixed_precision_and_compilation_train_alike(hardware):
    if hardware.compile and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    plain, other = run("probe"), run("probe", hardware=hardware)
    assert list(plain.model.state_dict()) == list(other.model.state_dict())
    rho = [result.history[-1]["rho"] for result in (plain, other)]
    assert rho[0] == pytest.approx(rho[1], rel=0.05)


def test_fsdp_says_that_it_needs_a_gpu():
    with pytest.raises(SettingsError, match="FSDP"):
        run("probe", hardware=Hardware(strategy="fsdp"))
