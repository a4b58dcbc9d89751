"""Intervals, advantage and worst case by hand."""

import math

import pytest

from immunis import InputError
from immunis.audits.statistics import (
    advantage,
    cost_to_reach,
    interval,
    residual_advantage,
    stopped,
    summarise,
    worst_case,
)


def curve(*points):
    keys = ("steps", "validation", "test")
    rest = {"samples": 1, "flops": 1.0, "seconds": 0.0}
    return [{**rest, **dict(zip(keys, p, strict=True))} for p in points]


def test_an_attacker_stops_where_validation_is_best():
    kept = stopped(curve((1, 0.5, 0.4), (2, 0.9, 0.8), (5, 0.7, 0.95)))
    assert [p["score"] for p in kept] == [0.4, 0.8, 0.8]
    assert cost_to_reach(kept, 0.8)["steps"] == 2
    assert cost_to_reach(kept, 0.81)["steps"] == math.inf


def done(*points):
    return {"status": "done", "curve": curve(*points), "settings": {}, "trials": 1, "runs": 1,
            "search_flops": 1.0, "seconds": 0.1}  # fmt: skip


def test_advantage_cost_and_multiplier_by_hand():
    outcomes = {
        "original": [done((1, 0.5, 0.5), (10, 0.9, 0.9))] * 3,
        "slow": [done((1, 0.2, 0.2), (100, 0.9, 0.9))] * 3,
        "safe": [done((1, 0.2, 0.2), (100, 0.3, 0.3))] * 3,
        "untrained": [done((1, 0.1, 0.1), (100, 0.4, 0.4))] * 3,
    }
    rows = summarise(outcomes, "original", "untrained", chance=0.1)
    assert rows["slow"]["residual_advantage"]["mean"] == pytest.approx(1)
    assert rows["slow"]["multiplier"]["steps"] == 10
    assert rows["safe"]["residual_advantage"]["mean"] == 0
    assert rows["safe"]["multiplier"]["steps"] == math.inf
    assert [p["steps"] for p in rows["slow"]["curve"]] == [1, 100]
    case = worst_case({"x": rows}, "slow", "original", "untrained")
    assert (case["attack"], case["residual_advantage"]) == ("x", pytest.approx(1))
    assert case["gain"] == pytest.approx(0.5)


def test_the_interval_of_an_advantage_is_students_and_none_for_one_seed():
    def kept(**scores):
        outcomes = {name: [done((1, s, s)) for s in of] for name, of in scores.items()}
        return summarise(outcomes, "original", "untrained", 0.0)["safe"]["residual_advantage"]

    found = kept(original=(0.9,) * 3, safe=(0.4, 0.5, 0.6), untrained=(0.1,) * 3)
    reach = 4.30265 * 0.1 / 3**0.5 / 0.8  # t of two degrees of freedom
    assert found["mean"] == pytest.approx(0.5)
    assert found["high"] - found["mean"] == pytest.approx(reach, rel=1e-4)
    about_nothing = kept(original=(0.9,) * 3, safe=(0.0, 0.1, 0.2), untrained=(0.1,) * 3)
    assert about_nothing["mean"] == about_nothing["low"] == 0
    assert about_nothing["high"] == pytest.approx(reach, rel=1e-4)  # of shares not clipped before
    with pytest.raises(InputError, match="scores of \\[3, 2, 2\\] seeds"):
        advantage([0.5, 0.6, 0.7], [0.9, 0.9], [0.1, 0.1])
    below = kept(original=(0.9,) * 3, safe=(0.0, 0.01, 0.02), untrained=(0.1,) * 3)
    assert below == {"mean": 0, "low": 0, "high": 0}
    alone = kept(original=(0.9,), safe=(0.5,), untrained=(0.1,))
    assert alone["mean"] == pytest.approx(0.5) and math.isnan(alone["low"])


def test_the_worst_case_is_the_largest_residual_advantage():
    def rows(original, defended, untrained):
        by_model = {"o": original, "d": defended, "u": untrained}
        return summarise({k: [done((1, v, v))] * 3 for k, v in by_model.items()}, "o", "u", 0.1)

    table = {
        "a": rows(0.95, 0.7, 0.5),
        "b": rows(0.8, 0.8, 0.65),
        "no help": rows(0.5, 0.9, 0.5),
        "broke": {"d": {"status": "failed", "reason": ""}},
    }
    case = worst_case(table, "d", "o", "u")
    assert (case["attack"], case["residual_advantage"]) == ("b", pytest.approx(1))
    assert (case["highest_attack"], case["highest_accuracy"]) == ("no help", pytest.approx(0.9))
    assert (case["attacks"], case["undefined"], case["failed"]) == (3, 1, 1)


def test_no_help_means_no_share_and_noise_is_shown_not_hidden():
    assert math.isnan(residual_advantage(0.5, 0.4, 0.4))
    assert math.isnan(residual_advantage(0.5, 0.9, -math.inf))
    row = summarise({"o": [done((1, 0.1, 0.1))] * 3}, "o", "u", chance=0.2)["o"]
    assert "does not beat chance" in row["notes"][0]
    assert residual_advantage(0.9, 0.8, 0.4) == pytest.approx(1.25)
    noisy = {
        "original": [done((1, t, t)) for t in (0.9, 0.5, 0.7)],
        "defended": [done((1, t, t)) for t in (0.8, 0.6, 0.7)],
        "untrained": [done((1, t, t)) for t in (0.7, 0.6, 0.5)],
    }
    row = summarise(noisy, "original", "untrained", 0.5)["defended"]["residual_advantage"]
    assert row["mean"] == pytest.approx(1)
    assert row["high"] - row["low"] > 0.5


def test_an_attack_that_failed_on_the_original_has_no_comparison():
    rows = summarise(
        {"original": [{"status": "failed", "reason": "x"}], "d": [done((1, 1.0, 1.0))]},
        "original", "untrained", 0.1,
    )  # fmt: skip
    assert rows["original"]["status"] == "failed"
    assert "cost" not in rows["d"]
    none = worst_case({"x": {}}, "d", "original", "untrained")
    assert none["attack"] is None


def test_intervals():
    assert interval([])["mean"] != interval([])["mean"]
    assert math.isnan(interval([0.5])["low"])  # one run says nothing of its spread
    row = interval([0.1, 0.2, 0.3])
    assert row["low"] == pytest.approx(0.2 - 4.303 * 0.1 / 3**0.5, abs=1e-3)
