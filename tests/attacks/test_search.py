"""How settings are chosen."""

import dataclasses

import numpy as np
import pytest
import torch

from helpers.arenas import arena_for
from immunis import SettingsError
from immunis.attacks import ATTACKS, GROUPS
from immunis.attacks.contract import Arena, Attack, Data, Step
from immunis.attacks.search import curve, grid, search, space_of
from immunis.models.find_head import cut

F = torch.float64


def test_the_search_validates_on_data_it_does_not_fit_and_never_on_test_data():
    arena = arena_for(ATTACKS["ridge"])
    fit, held = arena.rows
    assert not set(fit) & set(held)
    assert len(fit) + len(held) == 150

    def run(arena, settings):
        return [Step(1, 1, 1.0, lambda: (settings["x"], 1 - settings["x"]))]

    fake = Attack(run, {"x": (0.2, 0.9, 0.5)})
    assert search(fake, arena).settings == {"x": 0.9}


def test_closed_form_attacks_validate_few_samples_on_three_balanced_fifths():
    arena = arena_for(ATTACKS["ridge"])
    parts = [dataclasses.replace(arena, fold=fold).rows for fold in range(3)]
    for fit, held in parts:
        assert not set(fit) & set(held)
        assert np.bincount(arena.train.labels[held]).tolist() == [10, 10, 10]
    assert not set(parts[0][1]) & set(parts[1][1])
    whole = dataclasses.replace(arena, refit=True)
    assert len(whole.rows[0]) == 150


def test_a_closed_form_attack_is_fitted_again_on_all_rows():
    arena = arena_for(ATTACKS["ridge"])
    outcome = search(ATTACKS["ridge"], arena)
    whole = dataclasses.replace(arena, refit=True)
    assert outcome.points[0].test == curve(ATTACKS["ridge"], whole, outcome.settings)[0].test
    assert len(outcome.costs) == 6 * 3 + 1
    assert sum(outcome.costs) > outcome.points[0].flops


def test_a_closed_form_attack_is_chosen_without_a_look_at_test_rows():
    ridge, seen = ATTACKS["ridge"], []

    def run(arena, settings):
        steps = ridge.run(arena, settings)
        seen.append((arena.blind, np.isnan(steps[0].scores()[1])))
        return steps

    outcome = search(dataclasses.replace(ridge, run=run), arena_for(ridge))
    assert seen == [(True, True)] * 18 + [(False, False)]
    assert np.isfinite(outcome.points[0].test)


def test_a_closed_form_regression_is_chosen_by_the_median_of_five_fifths():
    """One row unlike all others makes the right penalty look worst in its own fifth."""
    validation = {"right": [0.9, 0.9, -350.0, 0.9, 0.9], "wrong": [0.5] * 5}

    def run(arena, settings):
        score = validation[settings["penalty"]][arena.fold]
        return [Step(1, 1, 1.0, lambda: (score, 0.0))]

    attack = Attack(run, {"penalty": ("wrong", "right")}, closed_form=True)
    x, y = np.zeros((600, 2)), np.zeros((600, 1))
    whole = cut(torch.eye(2), torch.ones(2, 2))
    arena = Arena(whole, "regression", 1, Data(x, y), Data(x, y), {"": (x, x)})
    found = search(attack, arena)
    assert found.settings == {"penalty": "right"}
    assert len(found.costs) == 5 * 2 + 1
    assert found.points[-1].validation == 0.9


def test_inner_searches_are_counted():
    outcome = search(ATTACKS["drop_last"], arena_for(ATTACKS["drop_last"], budget=5))
    assert outcome.trials == 3
    assert len(outcome.costs) > 3 * 3
    long = arena_for(ATTACKS["drop_last"], budget=1000)
    assert len(space_of(ATTACKS["drop_last"], long)["probe"]) == len(GROUPS["probes"])


def test_optuna_searches_between_the_ends_and_is_reproducible():
    pytest.importorskip("optuna")
    arena, seen = arena_for(ATTACKS["ridge"]), []

    def run(arena, settings):
        seen.append(settings["rate"])
        return [Step(1, 1, 1.0, lambda: (-abs(np.log10(settings["rate"]) + 2.5), 0.0))]

    fake = Attack(run, {"rate": (1e-4, 1e-1), "kind": ("a", "b")})
    outcome = search(fake, arena, trials=12)
    assert outcome.trials == 12
    assert len(outcome.costs) == 12
    assert all(1e-4 <= rate <= 1e-1 for rate in seen)
    assert len(set(seen)) > 4
    first = list(seen)
    seen.clear()
    search(fake, arena, trials=12)
    assert seen == first


def test_optuna_missing_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(SettingsError, match=r"immunis\[search\]"):
        search(ATTACKS["ridge"], arena_for(ATTACKS["ridge"]), trials=2)


def test_a_grid_holds_every_combination_in_order():
    assert list(grid({"a": (1, 2), "b": ("x",)})) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    assert list(grid({})) == [{}]
