"""A run made ready: chosen layers, held-out rows, warnings of small Grams."""

import dataclasses
import warnings

import pytest
import torch
from torch import nn

from helpers.networks import add_gradients, small_net, tasks
from helpers.training import SHORT, objective, run, states_equal, whole
from immunis import InputError, RankWarning, SettingsError, Task, immunize
from immunis.models.find_cut import cut
from immunis.training.loop import fit
from immunis.training.objective import supervised_only
from immunis.training.settings import Hardware
from immunis.training.setup import prepare
from immunis.training.step import draw


def test_mixing_harmful_rows_changes_the_run_and_needs_rows_to_average():
    mixing = dataclasses.replace(SHORT, mix=True)
    assert not states_equal(run().model.state_dict(), run(training=mixing).model.state_dict())
    primary, harmful = tasks()
    with pytest.raises(SettingsError, match="there is none"):
        fit(whole(), supervised_only(), primary, None, mixing)
    inputs, labels = harmful.train.tensors()
    words = Task((inputs.long(), labels), name="words", classes=harmful.outputs)
    with pytest.raises(SettingsError, match="words holds whole numbers"):
        fit(whole(), objective("probe"), primary, words, mixing)


def test_batchnorm_statistics_are_frozen_or_updated_by_choice():
    frozen = run().model.state_dict()
    updated = run(training=dataclasses.replace(SHORT, batchnorm="update")).model.state_dict()
    start = small_net().state_dict()
    assert torch.equal(frozen["3.1.running_mean"], start["3.1.running_mean"])
    assert not torch.equal(updated["3.1.running_mean"], start["3.1.running_mean"])
    assert torch.equal(updated["1.running_mean"], start["1.running_mean"])  # its layer is frozen


def test_a_layer_that_does_not_exist_is_named_with_close_ones():
    with pytest.raises(SettingsError, match=r"unknown layer '3.9'.*did you mean '3\.\d'"):
        run(training=dataclasses.replace(SHORT, layers=["3.9"]))
    still = next(name for name, module in small_net().named_modules() if type(module) is nn.ReLU)
    with pytest.raises(SettingsError, match="has no parameters"):
        run(training=dataclasses.replace(SHORT, layers=[still]))


def test_fewer_harmful_samples_than_dimensions_warn():
    with pytest.warns(RankWarning, match="12 harmful samples a step in 16 dimensions"):
        result = run("r_ill", dataclasses.replace(SHORT, harmful_batch=12))
    assert result.notes
    with warnings.catch_warnings():
        warnings.simplefilter("error", RankWarning)
        run("r_ill")


@pytest.mark.parametrize(
    ("name", "settings", "changes", "says"),
    [
        ("condition", {}, {"batch": 12}, "12 primary samples a step in 16 dim.*Raise batch"),
        ("r_ill", {}, {"held_out": 0.92}, "16 dimensions.*Give more data"),
    ],
)
def test_every_gram_is_counted(name, settings, changes, says):
    with pytest.warns(RankWarning, match=says):
        run(name, dataclasses.replace(SHORT, steps=1, evaluate=1, **changes), settings)


def test_a_head_of_another_width_is_refused():
    primary, harmful = tasks()
    wide = small_net(classes=10)
    with pytest.raises(InputError, match="has 10 outputs, primary has 4.*classes=10"):
        immunize(wide, primary, harmful, "probe", training=SHORT, head="6")
    task = Task(primary.train.tensors(), primary.test.tensors(), "some", classes=10)
    immunize(wide, task, harmful, "probe", training=SHORT, head="6")


def test_nothing_to_train_and_the_head_as_a_layer_are_refused():
    bare = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).eval()
    with pytest.raises(SettingsError, match="nothing to train"):
        immunize(bare, *tasks(), "probe", training=SHORT)
    with pytest.raises(SettingsError, match="'6' is the head, which is always trained"):
        run("probe", dataclasses.replace(SHORT, layers=["6"]))


def test_a_tied_head_is_trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[3].weight = model[2].weight
    result = immunize(model.eval(), *tasks(), "probe", training=dataclasses.replace(
        SHORT, layers=["1"]
    ))  # fmt: skip
    assert not torch.equal(result.head.weight, model[3].weight)


def test_harmful_rows_may_be_held_out_by_a_share_of_their_own():
    held = run("probe").history[0]["held"]
    few = run("probe", dataclasses.replace(SHORT, harmful_held_out=SHORT.held_out / 2))
    assert few.history[0]["held"] == round(held / 2)
    both = run("probe", dataclasses.replace(SHORT, harmful_held_out=SHORT.held_out))
    assert both.history[0]["held"] == held
    assert few.history[0]["primary"] == both.history[0]["primary"]  # of as many rows as before
    with pytest.raises(SettingsError, match="harmful: harmful_held_out=0.001"):
        run("probe", dataclasses.replace(SHORT, harmful_held_out=0.001))


def test_a_held_out_share_must_leave_rows():
    for share in (0.001, 0.999):
        with pytest.raises(SettingsError, match=f"primary: held_out={share} holds out"):
            run("probe", dataclasses.replace(SHORT, held_out=share))


def test_layers_of_a_bare_encoder_go_by_its_own_names():
    primary, harmful = tasks()
    encoder = nn.Sequential(*list(small_net().children())[:-1]).eval()
    width = cut(encoder, primary.train.first(2)).width
    with pytest.raises(SettingsError, match="unknown layer '0.x'") as error:
        immunize(
            encoder, primary, harmful, "probe", head=nn.Linear(width, primary.outputs),
            training=dataclasses.replace(SHORT, layers=["0.x"]),
        )  # fmt: skip
    assert "0.0" not in str(error.value)
    parts = nn.Sequential(nn.Linear(6, 8), nn.ReLU()).eval(), nn.Linear(8, 3).eval()
    with pytest.raises(SettingsError, match="layer '1' has no parameters"):
        cut(parts, torch.randn(2, 6)).parameters_named(["1"])


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
@pytest.mark.parametrize("parts", [1, 3])
def test_the_teacher_answers_as_the_original_in_any_precision_and_part(precision, parts):
    training = dataclasses.replace(SHORT, batchnorm="freeze", accumulate=parts)
    hardware, part = Hardware(precision=precision), whole()
    made = prepare(part, objective("probe", weight=3.0), *tasks(), training, hardware, 0)
    step, batch, other = next(iter(made.batches(0, 1)))
    terms = add_gradients(made, draw(made, step, batch, other))
    assert terms["distillation"] == pytest.approx(0.0, abs=1e-4)  # nothing has moved yet
    made.optimizer.step()
    assert torch.equal(made.teacher(batch[0]), made.teacher(batch[0]))
    told = part.answers(batch[0]).float()
    torch.testing.assert_close(made.teacher(batch[0]), told, rtol=0.05, atol=0.05)
    assert add_gradients(made, draw(made, step, batch, other))["distillation"] > 0
    made.student.module.close()


def test_a_trained_model_comes_back_without_hooks():
    part = whole()
    model = fit(part, objective("probe", weight=3.0), *tasks(), SHORT).model
    for module in (*model.modules(), *part.model.modules()):
        assert not (module._forward_hooks or module._forward_pre_hooks)
