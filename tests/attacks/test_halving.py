"""Successive halving finds the best settings within the steps it states."""

import dataclasses
import math

import numpy as np
import pytest

from helpers.arenas import arena_for, image_data
from helpers.networks import Residual
from immunis.attacks import ATTACKS
from immunis.attacks.contract import Attack, Step
from immunis.attacks.halving import FIRST, NEXT, SCALES, TOTAL, WIDENED, first_choices, halve
from immunis.attacks.search import search, space_of

SPACE = {
    "optimizer": ("sgd", "adamw"),
    "rate": (0.1, 0.01, 1.0, 0.001),
    "decay": (0.01, 0.1),
    "layer_decay": (1.0, 0.7),
    "smoothing": (0.0, 0.1),
    "stages": (1, 2, 4),
}


def searched(space, score, budget=90, seed=0, **more):
    """The runs of a search on a toy: ``score(settings, share of the budget)``."""
    runs = []

    def run(settings, steps):
        runs.append((settings, steps))
        return score(settings, steps / budget)

    halve(space, run, budget, seed, **more)
    return runs


def peak(rate):
    return lambda settings, _: -abs(math.log10(settings["rate"] / rate))


def toy(score, settings=SPACE):
    """An attack of which the score is known for every choice of settings."""

    def run(arena, settings):
        value = score(settings, arena.budget)
        marks = [arena.budget] if arena.pilot else [1, arena.budget]
        return [Step(s, s, 1.0, lambda s=s: (value * s / arena.budget, value)) for s in marks]

    return Attack(run, settings)


@pytest.mark.parametrize("budget", [1, 2, 5, 20, 90, 1000, 5000])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_runs_together_take_no_more_steps_than_stated(budget, size):
    space = {**SPACE, "stages": range(size), "augment": (False, True)}
    for score in (peak(0.05), peak(1e-9), peak(1e9), lambda *_: 0.0):
        runs = searched(space, score, budget)
        assert sum(steps for _, steps in runs) <= TOTAL * budget
        assert max(steps for _, steps in runs) == budget


def test_every_rate_of_every_optimizer_is_tried_and_every_value_of_the_rest():
    first = first_choices(SPACE, seed=3)
    assert len(first) == FIRST
    assert {(c["optimizer"], c["rate"]) for c in first} == {
        (o, r) for o in SPACE["optimizer"] for r in SPACE["rate"]
    }
    for name, values in SPACE.items():
        counts = [sum(c[name] == v for c in first) for v in values]
        assert max(counts) - min(counts) <= 4, name
    assert first == first_choices(SPACE, seed=3) != first_choices(SPACE, seed=4)
    assert first_choices({"rate": (1.0,), "stages": (1, 2)}, 0) == [
        {"rate": 1.0, "stages": 1}, {"rate": 1.0, "stages": 2},
    ]  # fmt: skip


def test_the_best_settings_of_a_toy_are_found_and_run_to_the_end():
    def score(settings, share):
        right = settings["optimizer"] == "adamw", settings["stages"] == 2
        return share * (sum(right) - abs(math.log10(settings["rate"] / 0.01)))

    space = {"optimizer": SPACE["optimizer"], "rate": SPACE["rate"], "stages": (2,)}
    runs = searched(space, score)
    best = max((r for r in runs if r[1] == 90), key=lambda r: score(r[0], 1.0))
    assert best[0] == {"optimizer": "adamw", "rate": 0.01, "stages": 2}
    assert sum(steps == 90 for _, steps in runs) <= 4 < sum(steps == 10 for _, steps in runs)


@pytest.mark.parametrize("rate", [30.0, 1e-4])
def test_a_rate_outside_the_first_ones_is_found_by_widening(rate):
    outcome = search(toy(lambda s, _: 10 + peak(rate)(s, 1)), arena_for(ATTACKS["finetune_all"]))
    assert abs(math.log10(outcome.settings["rate"] / rate)) <= math.log10(NEXT) / 2 + 1e-6
    assert outcome.rates["inside"]
    assert outcome.rates["tried"][0] < outcome.settings["rate"] < outcome.rates["tried"][-1]


def test_a_rate_that_improves_without_end_is_said_to_be_at_the_edge():
    outcome = search(
        toy(lambda s, _: 10 + math.log10(s["rate"])), arena_for(ATTACKS["finetune_all"])
    )
    assert 1.0 < outcome.settings["rate"] <= 101.0
    assert not outcome.rates["inside"]
    assert any("edge" in note for note in outcome.notes)


def probe(score, **settings):
    """A probe of which the score is known for every choice of settings."""

    def run(arena, settings):
        tried.append(dict(settings))
        return [Step(1, 1, 1.0, lambda: (score(settings), 0.0))]

    tried = []
    return Attack(run, settings, name="toy"), tried


@pytest.mark.parametrize("name", WIDENED)
@pytest.mark.parametrize("best", [0.01, 0.3, 3.0, 1e-3])
def test_a_probe_too_is_searched_until_the_best_value_is_inside(name, best):
    attack, tried = probe(lambda s: -abs(math.log10(s[name] / best)), **{name: (0.01, 0.001, 0.1)})
    outcome = search(attack, arena_for(ATTACKS["ridge"]))
    values = [each[name] for each in tried]
    assert abs(math.log10(outcome.settings[name] / best)) <= math.log10(NEXT) / 2 + 1e-6
    assert min(values) < outcome.settings[name] < max(values)
    assert len(values) <= 7 and not outcome.notes


@pytest.mark.parametrize("name", SCALES)
def test_a_value_at_an_edge_is_noted_whatever_the_attack(name):
    attack, tried = probe(lambda s: s[name], **{name: (0.01, 0.001, 0.1), "other": (1, 2)})
    outcome = search(attack, arena_for(ATTACKS["ridge"]))
    assert any(note.startswith(name) and "edge" in note for note in outcome.notes)
    assert max(each[name] for each in tried) == pytest.approx(10.0 if name in WIDENED else 0.1)
    tuned = toy(lambda s, _: s[name], {**SPACE, name: (0.01, 0.1)})
    tuned = search(tuned, arena_for(ATTACKS["ridge"]))
    assert any(name in note and "edge" in note for note in tuned.notes)


def test_widths_that_count_units_are_not_widened():
    attack, tried = probe(lambda s: s["width"], width=(64, 128))
    outcome = search(attack, arena_for(ATTACKS["ridge"]))
    assert [each["width"] for each in tried] == [64, 128] and not outcome.notes


def test_the_edge_of_a_probe_that_reads_other_features_is_noted(monkeypatch):
    worse, _ = probe(lambda s: s["rate"] / 1e6, rate=(0.1,))
    monkeypatch.setitem(ATTACKS, "ridge", worse)
    arena = arena_for(ATTACKS["drop_last"])
    outcome = search(ATTACKS["drop_last"], arena, only={"probe": ["ridge"]})
    assert outcome.notes == ["ridge: rate 10 is at the edge of those tried"]


def test_in_a_short_budget_small_networks_have_three_rates_and_kernels_three_widths():
    for name, setting, kind in (("mlp", "rate", "run"), ("kernel", "width", "together")):
        attack, tried = ATTACKS[name], []

        def spy(arena, given, kind=kind, attack=attack, tried=tried):
            tried.extend([given] if kind == "run" else given)
            return getattr(attack, kind)(arena, given)

        arena = arena_for(attack, budget=50)
        outcome = search(dataclasses.replace(attack, **{kind: spy}), arena)
        values = sorted({each[setting] for each in tried})
        assert len(values) >= 3 and values[0] < outcome.settings[setting] < values[-1]
        assert values[-1] / values[0] >= 9.9


@pytest.mark.parametrize("name", [a.name for a in ATTACKS.values() if "rate" in a.settings])
def test_every_searched_rate_has_one_below_and_one_above(name):
    arena = arena_for(ATTACKS[name], budget=20)
    attack, tried = ATTACKS[name], []
    if attack.features is not None or attack.fine_tunes:
        pytest.skip("searched above, and by halving")
    kind = "run" if attack.together is None else "together"

    def spy(arena, given):
        tried.extend([given] if kind == "run" else given)
        return getattr(attack, kind)(arena, given)

    outcome = search(dataclasses.replace(attack, **{kind: spy}), arena)
    rates = [each["rate"] for each in tried]
    edge = any("edge" in note for note in outcome.notes)
    assert (min(rates) < outcome.settings["rate"] < max(rates)) != edge


def test_a_rate_that_the_caller_fixes_is_not_widened():
    arena = arena_for(ATTACKS["finetune_all"])
    outcome = search(toy(lambda s, _: s["rate"]), arena, only={"rate": [0.1, 0.01]})
    assert outcome.settings["rate"] == 0.1
    assert outcome.rates["tried"] == [0.01, 0.1]


def test_augmentation_that_helps_late_is_not_dropped_early():
    space = {**SPACE, "augment": (False, True)}

    def score(settings, share):  # behind in short runs, ahead in long ones
        return peak(0.1)(settings, share) / 10 + settings["augment"] * (share - 0.5)

    ends = [settings for settings, steps in searched(space, score) if steps == 90]
    assert {settings["augment"] for settings in ends} == {False, True}


def test_the_search_says_what_each_trial_gained_and_chooses_among_whole_runs():
    arena = arena_for(ATTACKS["finetune_all"])
    outcome = search(toy(lambda s, steps: peak(0.1)(s, 1) + 5 - (steps == 200)), arena)
    assert outcome.points[-1].steps == 200 and len(outcome.points) == 2
    steps = [row["steps"] for row in outcome.spent]
    assert steps == sorted(steps) and steps[-1] <= TOTAL * 200
    assert [row["trial"] for row in outcome.spent] == [*range(1, outcome.trials + 1)]
    scores = [row["validation"] for row in outcome.spent]
    assert scores == sorted(scores) and scores[-1] == outcome.spent[-1]["test"]


def test_runs_that_are_not_finite_lose():
    runs = searched(SPACE, lambda s, _: -math.inf if s["rate"] > 0.05 else s["rate"])
    whole = [settings["rate"] for settings, steps in runs if steps == 90]
    assert 0.01 in whole


def test_the_space_of_fine_tuning_spans_three_decades_of_rates():
    arena = arena_for(ATTACKS["finetune_all"], model=Residual().eval(), data=image_data)
    space = space_of(ATTACKS["finetune_all"], arena)
    assert max(space["rate"]) / min(space["rate"]) >= 999
    assert {"optimizer", "decay", "layer_decay", "smoothing", "augment"} <= set(space)
    assert np.prod([len(v) for v in space.values()]) > FIRST
