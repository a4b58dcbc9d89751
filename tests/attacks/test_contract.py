"""What every attack promises."""

import dataclasses
import functools

import numpy as np
import pytest
import torch

from helpers.arenas import IMAGES, arena_for, image_data, separable
from helpers.networks import Residual
from immunis.attacks import ATTACKS
from immunis.attacks.contract import NotApplicableError
from immunis.attacks.search import search

TUNING = [name for name, attack in ATTACKS.items() if "optimizer" in attack.settings]
ONE = {"optimizer": ["sgd"], "rate": [0.1], "augment": [False]}  # of a fine-tuning attack's grid
EACH = [(name, ONE if name in TUNING else None) for name in ATTACKS]
WHOLE = [pytest.param(name, None, marks=pytest.mark.slow) for name in TUNING]
every_attack = pytest.mark.parametrize("name", ATTACKS)
every_grid = pytest.mark.parametrize(("name", "only"), [*EACH, *WHOLE])


@functools.cache
def short(name):
    """A short search, what it found, and the model before it."""
    arena = arena_for(ATTACKS[name], budget=20, extraction_flops=100.0)
    before = {k: v.clone() for k, v in arena.cut.model.state_dict().items()}
    return arena, before, search(ATTACKS[name], arena)


@every_grid
def test_solves_a_separable_task(name, only):
    outcome = search(ATTACKS[name], arena_for(ATTACKS[name]), only=only)
    best = max(outcome.points, key=lambda p: p.validation)
    assert best.test > 0.9, (name, outcome)


@every_attack
def test_costs_rise_along_the_curve_and_stay_in_budget(name):
    points = short(name)[2].points
    assert points[-1].steps <= 20
    for cost in ("steps", "samples", "flops", "seconds"):
        values = [getattr(p, cost) for p in points]
        assert values == sorted(values), cost
        assert values[-1] > 0, cost


@every_attack
def test_the_same_seed_gives_the_same_curve_and_leaves_the_global_generator_alone(name):
    arena, _, first = short(name)
    torch.manual_seed(5)
    again = search(ATTACKS[name], arena)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert first.settings == again.settings
    for p, q in zip(first.points, again.points, strict=True):
        assert dataclasses.replace(p, seconds=0) == dataclasses.replace(q, seconds=0)


@every_attack
def test_leaves_the_model_alone(name):
    arena, before, _ = short(name)
    for key, value in arena.cut.model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert not arena.cut.model.training


def targets(name, factor, shift):
    def data(seed):
        x, _ = (image_data if name in IMAGES else separable)(seed=seed)
        return x, factor * (x.reshape(len(x), -1)[:, :2].astype(np.float64) * 2 + shift)

    return data


@every_grid
def test_regression_works_or_is_refused_in_words(name, only):
    attack = ATTACKS[name]
    arena = arena_for(attack, data=targets(name, 1.0, 1.0), kind="regression")
    if attack.needs_classes:
        with pytest.raises(NotApplicableError, match=f"{name} needs classes"):
            search(attack, arena)
    else:
        assert max(p.test for p in search(attack, arena, only=only).points) > 0.3


@every_grid
def test_the_units_of_regression_targets_do_not_matter(name, only):
    attack, found = ATTACKS[name], []
    for factor in () if attack.needs_classes else (1.0, 1e5):
        data = targets(name, factor, 5.0)
        arena = arena_for(attack, data=data, kind="regression", budget=50)
        found.append(max(p.test for p in search(attack, arena, only=only).points))
    assert found[1:] == pytest.approx(found[:1], abs=0.05)


@pytest.mark.parametrize(
    "name", ["earlier_layer", "concat_blocks", "reinit_last", "distil", "finetune_last"]
)
def test_one_stage_has_no_surgery(name):
    arena = arena_for(ATTACKS[name], model=torch.eye(6))
    with pytest.raises(NotApplicableError, match="one stage"):
        search(ATTACKS[name], arena)


@pytest.mark.parametrize(
    "name", ["drop_last", "invert_last", "pseudo_inverse", "reinit_directions"]
)
def test_features_that_no_linear_layer_makes_cannot_be_undone(name):
    arena = arena_for(ATTACKS[name], model=Residual().eval(), data=image_data)
    with pytest.raises(NotApplicableError, match="linear layer"):
        search(ATTACKS[name], arena)
