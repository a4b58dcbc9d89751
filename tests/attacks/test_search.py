"""How settings are chosen."""

import dataclasses

import numpy as np
import pytest
import torch

from helpers.arenas import arena_for, curve
from immunis import SettingsError
from immunis.attacks import ATTACKS, PROBES
from immunis.attacks.arrays import Data
from immunis.attacks.contract import Arena, Attack, Made, Step
from immunis.attacks.search import search, space_of
from immunis.models.find_cut import cut

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


def test_the_score_at_every_layer_is_that_of_the_run_that_validates_best_there():
    tests = {("a", 1): 0.3, ("a", 2): 0.4, ("b", 1): 0.9, ("b", 2): 0.1}

    def run(arena, settings):
        scores = settings["x"] / 10, tests[settings["layer"], settings["x"]]
        return [Step(1, 1, 1.0, lambda: scores)]

    arena = arena_for(ATTACKS["ridge"])
    found = search(Attack(run, {"layer": ("a", "b"), "x": (1, 2)}), arena)
    assert found.layers == {"a": 0.4, "b": 0.1}
    assert search(ATTACKS["ridge"], arena).layers == {}


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
    assert len(outcome.costs) == 6 * 2 * 3 + 1  # ridges, bases, folds
    assert sum(outcome.costs) > outcome.points[0].flops


def test_a_closed_form_attack_is_chosen_without_a_look_at_test_rows():
    ridge, seen = ATTACKS["ridge"], []

    def together(arena, choices):
        steps = ridge.together(arena, choices)
        seen.extend((arena.blind, np.isnan(step.scores()[1])) for step in steps[0])
        return steps

    outcome = search(dataclasses.replace(ridge, together=together), arena_for(ridge))
    assert seen == [(True, True)] * 36 + [(False, False)]
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
    assert len(space_of(ATTACKS["drop_last"], long)["probe"]) == len(PROBES)


def test_features_are_made_once_for_all_probes_and_their_cost_is_paid():
    arena, made = arena_for(ATTACKS["ridge"], budget=10), []

    def features(part, settings):
        made.append(settings["x"])
        return Made({"": arena.cache[""]}, steps=4, samples=5, flops=1e9)

    attack = Attack(settings={"x": (1, 2)}, features=features)
    outcome = search(attack, arena)
    assert made == [1, 2]
    assert outcome.points[0].steps == 5 and outcome.points[0].samples == 5 + 150
    assert outcome.points[0].flops > 1e9 and outcome.costs.count(1e9) == 2
    late = search(attack, arena, only={"probe": ["mlp"]})
    assert late.points[-1].steps == 10  # the probe has what is left


@pytest.mark.parametrize("right", [1.0, 100.0, 0.003])
def test_a_copy_is_changed_once_at_each_rate_and_read_in_every_way(right):
    """All readings meet the first probe; the best one and the last features meet the others."""
    arena, made = arena_for(ATTACKS["ridge"], budget=10), []
    whole = np.concatenate(arena.cache[""])
    order = np.random.default_rng(0).permutation(len(whole)) / len(whole)

    def features(part, settings):
        made.append(settings["rate"])
        share = 1 - 0.2 * abs(np.log10(settings["rate"] / right))
        pairs = {"a": 0 * whole + order[:, None], "b": whole * (order < share)[:, None]}
        return Made({name: (x[:150], x[150:]) for name, x in pairs.items()})

    attack = Attack(settings={"rate": (1.0, 0.1, 10.0), "read": ("a", "b")}, features=features)
    found = search(attack, arena)
    assert found.settings["read"] == "b" and found.points[-1].test > 0.9
    assert found.settings["rate"] == pytest.approx(right, rel=0.2)
    assert len(set(made)) == len(made) == found.trials / 2 - 2
    probes = space_of(attack, arena)["probe"]
    assert found.trials == 2 * len(made) + 2 * (len(probes) - 1)
    assert min(made) < found.settings["rate"] < max(made) and not found.notes


def test_every_probe_runs_at_any_budget_where_the_attack_asks_for_it():
    arena = arena_for(ATTACKS["drop_last"], budget=5)
    assert space_of(ATTACKS["drop_last"], arena)["probe"] == ["ridge", "mlp", "logistic"]
    for name in ("renormalise", "primary_first"):
        assert len(space_of(ATTACKS[name], arena)["probe"]) == len(PROBES)


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


def test_a_search_tries_every_combination_in_order():
    tried = []

    def run(arena, settings):
        tried.append(settings)
        return [Step(1, 1, 1.0, lambda: (0.5, 0.5))]

    found = search(Attack(run, {"a": (1, 2), "b": ("x", "y")}), arena_for(ATTACKS["ridge"]))
    assert tried == [{"a": a, "b": b} for a in (1, 2) for b in ("x", "y")]
    assert found.settings == tried[0]  # the first of equals
    search(Attack(run), arena_for(ATTACKS["ridge"]))
    assert tried[4:] == [{}]
