import copy
import json
import math

import pytest

from helpers import RESULTS
from immunis import Record
from immunis.core.shapes import CONTROL
from immunis.report.card import render
from immunis.report.query import (
    DIVERGED,
    NO_HELP,
    NO_SPAN,
    WIDE,
    cost_to,
    envelope,
    reached,
    telling_cost,
    untold,
)


def test_cost_is_drawn_in_steps_where_reading_features_dwarfs_all_else(audit_record):
    large = Record.load(RESULTS / "audit-tiny-imagenet-cars-resnet18.json")
    assert telling_cost(large) == "steps"
    assert "steps the attacker spends" in render(large)
    assert telling_cost(audit_record) == "flops"


def test_the_envelope_is_the_best_attack_that_stops_at_a_cost(audit_record):
    curves = [
        [(point["flops"], point["mean"]) for point in rows["erase"].get("curve", ())]
        for rows in audit_record.figures["attacks"].values()
    ]
    curve = envelope("erase", "flops", audit_record)
    for cost, score in curve:
        ends = [[mean for flops, mean in each if flops <= cost] for each in curves]
        assert score == max(each[-1] for each in ends if each)
    assert cost_to(curve, 1.1) == math.inf


def test_no_point_of_a_test_curve_is_chosen_by_its_score(audit_record):
    record = Record(**json.loads(audit_record.to_json()))
    rows = record.figures["attacks"]["invert_last"]  # the strongest
    low = {"mean": 0.2, "low": 0.2, "high": 0.2}
    for row in rows.values():
        row["curve"] = [{**row["curve"][0], "steps": 1, "mean": 0.999}, {**row["curve"][-1], **low}]
        row["score"] |= low
    for name in ("original", "erase", CONTROL):
        assert envelope(name, "flops", record)[-1][1] == reached(record, name).score < 0.99


@pytest.mark.parametrize("path", sorted(RESULTS.glob("audit-*.json")), ids=lambda path: path.stem)
def test_charts_end_where_the_highest_score_is(path):
    record = Record.load(path)
    for name in (*record.figures["models"], CONTROL):
        for cost in ("flops", "steps"):
            assert envelope(name, cost, record)[-1][1] == reached(record, name).score


def test_the_highest_score_is_that_of_the_strongest_attack_whatever_it_gains(audit_record):
    attacks = audit_record.figures["attacks"]
    for name in ("original", "erase", CONTROL):
        score, attack = reached(audit_record, name)
        done = [of[name] for of in attacks.values() if of[name]["status"] == "done"]
        assert score == max(row["score"]["mean"] for row in done)
        assert score == attacks[attack][name]["score"]["mean"]
    score, attack = reached(audit_record, "nobody")
    assert attack is None and math.isnan(score)


def test_a_share_of_noise_is_not_told_and_the_reason_is_said():
    nan = math.nan
    for low, high, mean, why in (
        (0.2, 0.6, 0.4, ""),
        (0.0, math.inf, 1.49, WIDE),
        (-3.0, 2.0, 0.1, WIDE),
        (nan, nan, 0.4, NO_SPAN),
        (None, None, None, NO_HELP),
        (nan, nan, nan, NO_HELP),
        (0.0, 0.0, nan, NO_HELP),
        (0.0, 1.0, math.inf, WIDE),
    ):
        assert untold({"mean": mean, "low": low, "high": high}) == why
    assert untold({"mean": 0.4}) == ""  # the first records hold no intervals
    assert untold(None) == NO_HELP
    assert untold({"mean": None, "low": None, "high": None, "reason": "diverged"}) == DIVERGED


def test_a_score_that_is_not_known_is_never_the_highest(audit_record):
    record = copy.deepcopy(audit_record)
    best = reached(record, "erase")
    record.figures["attacks"][best.attack]["erase"]["score"]["mean"] = math.nan
    second = reached(record, "erase")
    assert second.attack != best.attack and second.score <= best.score
