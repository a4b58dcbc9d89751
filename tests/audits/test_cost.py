"""Where attackers stop, and what they pay."""

import math

import pytest

from helpers.audits import curve
from immunis.audits.statistics.cost import add_costs, cost_to_reach, mean_curve, stopped


def test_an_attacker_stops_where_validation_is_best():
    kept = stopped(curve((1, 0.5, 0.4), (2, 0.9, 0.8), (5, 0.7, 0.95)))
    assert [p["score"] for p in kept] == [0.4, 0.8, 0.8]
    assert cost_to_reach(kept, 0.8)["steps"] == 2
    assert cost_to_reach(kept, 0.81)["steps"] == math.inf


def test_cost_and_multiplier_by_hand():
    curves = {
        "original": [stopped(curve((1, 0.5, 0.5), (10, 0.9, 0.9)))] * 3,
        "slow": [stopped(curve((1, 0.2, 0.2), (100, 0.9, 0.9)))] * 3,
        "safe": [stopped(curve((1, 0.2, 0.2), (100, 0.3, 0.3)))] * 3,
    }
    rows = {name: {} for name in curves}
    add_costs(rows, curves, "original", chance=0.1)
    assert rows["original"]["cost"]["steps"] == 10
    assert rows["slow"]["multiplier"]["steps"] == 10
    assert rows["safe"]["multiplier"]["steps"] == math.inf


def test_a_mean_curve_has_the_steps_that_all_runs_have():
    runs = [stopped(curve((1, 0.1, 0.1), (5, 0.3, 0.3))), stopped(curve((2, 0.5, 0.5)))]
    points = mean_curve(runs)
    assert [point["steps"] for point in points] == [2, 5]
    assert points[1]["mean"] == pytest.approx(0.4)
    assert (points[1]["low"], points[1]["high"]) == (0.3, 0.5)
