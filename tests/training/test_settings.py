"""Settings: ranges, types, schedule, length; devices, precision, compilation."""

import dataclasses
import math
import shutil

import pytest
import torch

from helpers.networks import small_net, tasks
from helpers.training import SHORT, objective, run, whole, with_a_scaler
from immunis import NumericalError, SettingsError, immunize
from immunis.training.loop import _check_finite
from immunis.training.settings import Hardware, Training
from immunis.training.setup import prepare


def test_sgd_schedule_and_decay_are_the_papers():
    training = Training(
        steps=10, optimizer="sgd", rate=1e-5, warmup=0.0, weight_decay=0.0, head_weight_decay=2e-5
    )
    assert training.factor(0, 10) == 1.0
    assert training.factor(5, 10) == pytest.approx(0.5)
    assert Training(schedule="constant", warmup=0.0).factor(9, 10) == 1.0
    assert Training(warmup=0.5).factor(0, 10) < Training(warmup=0.5).factor(4, 10) <= 1.0
    result = run("condition", dataclasses.replace(training, steps=2, batch=32, harmful_batch=64))
    assert result.steps == 2


def test_lengths_are_steps_or_epochs_of_either_task():
    assert Training(steps=7).length(10, 3) == 7
    assert Training(epochs=2).length(10, 3) == 20
    assert Training(harmful_epochs=2).length(10, 3) == 6
    assert Training().length(10, 3) == 10
    with pytest.raises(SettingsError, match="needs a harmful task"):
        Training(harmful_epochs=2).length(10, 0)
    with pytest.raises(SettingsError, match="exclude each other"):
        Training(steps=2, epochs=1)


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": 0}, {"batch": 0}, {"rate": -1.0}, {"rate": float("nan")}, {"clip": -1.0},
        {"held_out": 0.0}, {"held_out": 1.0}, {"harmful_held_out": 0.0}, {"warmup": 1.0},
        {"label_smoothing": 1.5}, {"accumulate": 2, "batchnorm": "update"}, {"patience": -1},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(SettingsError):
        Training(**bad)


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (Training, {"optimizer": "adam"}, "unknown optimizer.*did you mean 'adamw'"),
        (Training, {"schedule": "linear"}, "unknown schedule"),
        (Training, {"batchnorm": "frozen"}, "did you mean 'freeze'"),
        (Training, {"augment": "no"}, "is of type str; expected bool"),
        (Training, {"layers": "block2"}, r"expected Sequence\[str\]"),
        (Training, {"steps": 2.5}, "is of type float"),
        (Training, {"batch": 32.0}, "is of type float"),
        (Hardware, {"devices": "2"}, "is of type str"),
        (Hardware, {"devices": -1}, "devices=-1: expected a finite number >= 1"),
        (Hardware, {"strategy": "dp"}, "did you mean 'ddp'"),
        (Hardware, {"precision": "bf16"}, "unknown precision"),
    ],
)
def test_settings_of_another_type_are_refused_however_they_are_given(kind, given, says):
    with pytest.raises(SettingsError, match=says):
        kind(**given)
    with pytest.raises(SettingsError, match=says):
        immunize(small_net(), *tasks(), "probe", **{kind.__name__.lower(): given})


def test_unknown_training_settings_are_refused_with_a_suggestion():
    with pytest.raises(SettingsError, match="did you mean 'rate'"):
        immunize(small_net(), *tasks(), "probe", training={"rat": 1e-3})
    with pytest.raises(SettingsError, match="did you mean 'device'"):
        immunize(small_net(), *tasks(), "probe", training=SHORT, hardware={"devic": "cpu"})


def test_half_precision_without_a_scaler_stops_at_bad_gradients():
    goal = objective("probe")
    made = prepare(whole(), goal, *tasks(), SHORT, Hardware(precision="16-mixed"), 0)
    with pytest.raises(NumericalError, match="the gradient is not finite"):
        _check_finite(made, {"rho": 1.0}, math.nan)


def test_training_refuses_a_device_without_float64():
    with pytest.raises(SettingsError, match="MPS lacks: use --device cpu"):
        run("probe", hardware=Hardware(device="mps"))


@pytest.mark.parametrize("name", ["imma", "condition", "probe"])
def test_a_loss_scale_changes_nothing_but_rounding(name, monkeypatch):
    hardware = Hardware(precision="bf16-mixed")
    plain = run(name, hardware=hardware)
    monkeypatch.setattr("immunis.training.settings.Hardware.fabric", with_a_scaler(Hardware.fabric))
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
