"""What attackers pay: learning curves of runs that stop, the cost of a score, and its multiple."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median  # exact sums: a diverged R² may be near float64's end
from typing import Any

from immunis.core.shapes import REACH

COSTS = ("steps", "samples", "flops", "seconds")
Curve = Sequence[Mapping[str, float]]


def stopped(curve: Curve) -> list[dict[str, float]]:
    """Return the curve of an attacker who keeps the weights that validated best so far."""
    best = test = -math.inf
    kept = []
    for point in curve:
        if point["validation"] > best:
            best, test = point["validation"], point["test"]
        kept.append({**{cost: point[cost] for cost in COSTS}, "score": test})
    return kept


def cost_to_reach(curve: Curve, target: float) -> dict[str, float]:
    """Return the cost at the first point of a stopped curve at or above the target, or ∞."""
    reached = next((point for point in curve if point["score"] >= target), {})
    return {cost: reached.get(cost, math.inf) for cost in COSTS}


def add_costs(
    rows: Mapping[Any, dict[str, Any]],
    curves: Mapping[Any, Sequence[Curve]],
    original: Any,
    chance: float,
) -> None:
    """Add to each row what 90% of the original's score above chance costs, and its multiple."""
    ends = mean(curve[-1]["score"] for curve in curves[original])
    target = chance + REACH * (ends - chance)
    for model, of in curves.items():
        paid = [cost_to_reach(curve, target) for curve in of]
        rows[model]["cost"] = {cost: float(median(p[cost] for p in paid)) for cost in COSTS}
    base = rows[original]["cost"]
    for model in curves:
        rows[model]["multiplier"] = {c: _ratio(rows[model]["cost"][c], base[c]) for c in COSTS}


def _ratio(paid: float, base: float) -> float:
    if math.isinf(base):
        return math.nan
    return paid / base if base > 0 else math.inf


def mean_curve(curves: Sequence[Curve]) -> list[dict[str, float]]:
    """Return the mean score of several curves, and its range, at each step that all have."""
    return [_mean_point(*each) for each in last_points(curves)]


def last_points(curves: Sequence[Curve]) -> Iterator[tuple[int, list[Mapping[str, float]]]]:
    """Yield each step by which all curves have a point, with the last point of each."""
    for step in sorted({int(point["steps"]) for curve in curves for point in curve}):
        known = [[point for point in curve if point["steps"] <= step] for curve in curves]
        if all(known):
            yield step, [points[-1] for points in known]


def _mean_point(step: int, points: Curve) -> dict[str, float]:
    scores, flops = ([point[key] for point in points] for key in ("score", "flops"))
    ends = {"mean": mean(scores), "low": min(scores), "high": max(scores)}
    return {"steps": step, "flops": mean(flops), **ends}
