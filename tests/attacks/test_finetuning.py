"""Each fine-tuning attack wins where it must, and does not where it cannot."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from helpers.arenas import arena_for, curve, image_data, separable
from helpers.networks import flat_network
from immunis.attacks import ATTACKS
from immunis.attacks.contract import NotApplicableError, Step
from immunis.attacks.search import search, space_of
from immunis.models.zoo import untrained

FIRST = {  # one choice of settings, to be quick
    "optimizer": ["adamw"], "rate": [1.0], "decay": [0.01], "layer_decay": [1.0],
    "smoothing": [0.0], "augment": [False],
}  # fmt: skip
DEAD = 1e3  # a ReLU this far below zero passes neither answers nor gradients


def blocks(dead=()):
    """Three stages of a linear layer and a ReLU, and a head; ``dead`` stages are constant."""
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(6 if i == 0 else 16, 16), nn.ReLU()) for i in range(3)]
    for index in dead:
        stages[index][0].bias.data.fill_(-DEAD)
    return nn.Sequential(*stages, nn.Linear(16, 3)).eval()


def best(name, model, data=separable, **only):
    arena = arena_for(ATTACKS[name], model=model, data=data, budget=150)
    outcome = search(ATTACKS[name], arena, only={**FIRST, **only} if name != "ridge" else None)
    return max(outcome.points, key=lambda p: p.validation).test


@pytest.mark.parametrize(
    ("name", "dead", "only"),
    [
        ("reinit_last", [2], {"stages": [1]}),
        ("reinit_last", [1], {"stages": [2]}),
        ("reinit_first", [0], {"stages": [1]}),
        ("reinit_first", [1], {"stages": [2]}),
        ("early_head", [2], {"layer": ["1"]}),
        ("early_head", [1], {"layer": ["0"]}),
    ],
)
def test_what_a_dead_stage_hides_is_found_by_going_around_it(name, dead, only):
    model = blocks(dead)
    assert best("ridge", model) < 0.5
    assert best("finetune_all", model) < 0.5
    assert best(name, model, **only) > 0.9


@pytest.mark.parametrize(
    ("name", "dead", "only"),
    [
        ("reinit_last", [0], {"stages": [1]}),
        ("reinit_first", [2], {"stages": [2]}),
        ("early_head", [0], {"layer": ["0", "1"]}),
        ("finetune_last", [0], {"stages": [1, 2]}),
    ],
)
def test_a_dead_stage_that_stays_hides_everything(name, dead, only):
    assert best(name, blocks(dead), **only) < 0.5


def blind(stage):
    """Three linear stages; one of them lets only the last three of its six inputs through."""
    stages = [nn.Linear(6, 6, bias=False) for _ in range(3)]
    for layer in stages:
        nn.init.eye_(layer.weight)
    stages[stage].weight.data[:3] = 0
    return nn.Sequential(*stages, nn.Linear(6, 3)).eval()  # labels are in the first three


@pytest.mark.parametrize("name", ["finetune_all", "lora"])
def test_training_every_layer_restores_what_the_first_one_drops(name):
    assert best("ridge", blind(0)) < 0.6
    assert best(name, blind(0)) > 0.9


def test_training_the_last_stages_restores_what_they_drop_and_nothing_from_below():
    assert best("ridge", blind(2)) < 0.6
    assert best("finetune_last", blind(2), stages=[1]) > 0.9
    assert best("finetune_last", blind(1), stages=[1]) < 0.6
    assert best("finetune_last", blind(1), stages=[2]) > 0.9


def normed(lost_before):
    """A BatchNorm that scales the channels with the labels away, or finds them gone already."""
    model = blind(0) if lost_before else blind(2)
    model[2] = nn.BatchNorm1d(6)
    if not lost_before:
        model[2].weight.data[:3] = 0
    return model.eval()


def test_batchnorm_only_restores_channels_that_batchnorm_scaled_away_and_no_others():
    assert best("ridge", normed(False)) < 0.6
    assert best("batchnorm_only", normed(False)) > 0.9
    assert best("batchnorm_only", normed(True)) < 0.6


@pytest.mark.parametrize(
    "name", ["finetune_all", "finetune_last", "reinit_last", "reinit_first", "early_head", "lora"]
)
def test_labels_that_mean_nothing_are_not_learned(name):
    def noise(seed):
        x, _ = separable(seed=seed)
        return x, np.random.default_rng(seed).integers(0, 3, len(x))

    assert best(name, flat_network(), noise, layer=["0"], stages=[1]) < 0.5


def test_fine_tuning_moves_only_what_it_says(monkeypatch):
    seen = {}

    def spy(arena, network, trained, settings):
        seen["ids"] = {id(p) for p in trained}
        seen["network"] = network
        return [Step(1, 1, 1.0, lambda: (0.0, 0.0))]

    monkeypatch.setattr("immunis.attacks.finetuning.finetune_last.tune", spy)
    arena = arena_for(ATTACKS["finetune_last"], model=blocks())
    for stages, names in ((1, ["2"]), (2, ["1", "2"])):
        curve(ATTACKS["finetune_last"], arena, {"stages": stages})
        assert seen["ids"] == {id(p) for p in seen["network"].within(names)}
    assert space_of(ATTACKS["finetune_last"], arena)["stages"] == (1, 2)


def test_reinitialised_stages_are_drawn_anew(monkeypatch):
    seen = {}

    def spy(arena, network, trained, settings):
        seen["network"] = network
        return [Step(1, 1, 1.0, lambda: (0.0, 0.0))]

    for name in ("reinit_last", "reinit_first"):
        monkeypatch.setattr(f"immunis.attacks.finetuning.{name}.tune", spy)
    torch.manual_seed(7)
    twins = nn.Sequential(*[nn.Linear(6, 6) for _ in range(4)], nn.Linear(6, 3)).eval()
    arena = arena_for(ATTACKS["reinit_last"], model=twins)
    for name, stays, fresh in (("reinit_last", (0, 1), (2, 3)), ("reinit_first", (2, 3), (0, 1))):
        curve(ATTACKS[name], arena, {"stages": 2, "train": "last"})
        old, new = arena.cut.model, seen["network"].body
        assert all(torch.equal(old[i].weight, new[i].weight) for i in stays)
        assert not any(torch.equal(old[i].weight, new[i].weight) for i in fresh)
        assert not torch.equal(new[fresh[0]].weight, new[fresh[1]].weight), "no clones"


def test_training_from_scratch_is_fine_tuning_the_untrained_control_with_the_same_search():
    arena = arena_for(ATTACKS["finetune_all"])
    fresh = dataclasses.replace(arena, cut=untrained(arena.cut, 0))
    outcome = search(ATTACKS["finetune_all"], fresh)
    assert outcome.points[-1].test > 0.9
    assert outcome.rates and outcome.trials >= 12


def test_without_a_harmless_task_there_is_no_detour():
    arena = dataclasses.replace(arena_for(ATTACKS["harmless_first"]), harmless=None)
    with pytest.raises(NotApplicableError, match="harmless"):
        search(ATTACKS["harmless_first"], arena)


def test_the_harmless_phase_counts_and_scoring_is_not_on_the_clock(monkeypatch):
    attack, clock = ATTACKS["harmless_first"], [0.0]

    def score(*_):
        clock[0] += 100.0
        return torch.tensor([True, False])

    arena = arena_for(attack, budget=8)
    monkeypatch.setattr("immunis.attacks.tuning._hits", score)
    monkeypatch.setattr("immunis.attacks.search.time.perf_counter", lambda: clock[0])
    settings = {name: values[0] for name, values in space_of(attack, arena).items()}
    points = curve(attack, arena, settings)
    assert [point.seconds for point in points] == [0.0] * len(points)
    assert points[0].steps == 3  # two of the earlier phase
    alone = curve(ATTACKS["finetune_all"], arena, settings)
    assert points[0].flops == pytest.approx(3 * alone[0].flops)


def test_peft_missing_is_not_applicable(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(NotApplicableError, match=r"immunis\[lora\]"):
        search(ATTACKS["lora"], arena_for(ATTACKS["lora"]))


def test_nothing_to_train_is_said():
    arena = arena_for(ATTACKS["finetune_all"], model=nn.Sequential(nn.Tanh()).eval())
    with pytest.raises(NotApplicableError, match="no parameters"):
        search(ATTACKS["finetune_all"], arena)


def test_images_are_augmented_and_nothing_else_is():
    flat = arena_for(ATTACKS["finetune_all"])
    images = arena_for(ATTACKS["batchnorm_only"])
    assert image_data()[0].ndim == 4
    assert space_of(ATTACKS["finetune_all"], flat)["augment"] == (False,)
    assert space_of(ATTACKS["finetune_all"], images)["augment"] == (False, True)
