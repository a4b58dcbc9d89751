import math

from helpers import RESULTS
from immunis import Record
from immunis.report.card import render
from immunis.report.query import cost_to, envelope, telling_cost


def test_cost_is_drawn_in_steps_where_reading_features_dwarfs_all_else(audit_record):
    large = Record.load(RESULTS / "audit-tiny-imagenet-cars-resnet18.json")
    assert telling_cost(large) == "steps"
    assert "steps the attacker spends" in render(large)
    assert telling_cost(audit_record) == "flops"


def test_the_envelope_is_the_best_of_all_attacks_within_a_cost(audit_record):
    points = [
        (point["flops"], point["mean"])
        for rows in audit_record.figures["attacks"].values()
        for point in rows["erase"].get("curve", ())
    ]
    curve = envelope(audit_record, "erase")
    for cost, score in curve:
        assert score == max(mean for flops, mean in points if flops <= cost)
        assert cost == min(flops for flops, mean in points if mean >= score)
    assert curve[-1][1] == max(mean for _, mean in points)
    assert cost_to(curve, 1.1) == math.inf
