"""Training settings: ranges, types, schedule, length."""

import dataclasses

import pytest

from helpers.networks import small_net, tasks
from helpers.training import SHORT, run
from immunis import SettingsError, immunize
from immunis.training.hardware import Hardware
from immunis.training.settings import Training


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
