"""From raw learning curves to what they mean: intervals, advantage, cost, worst case.

*Residual advantage* of an attack on a defended model is ``(defended − untrained) /
(original − untrained)``, clipped at 0: the share of the original model's help that the attacker
keeps. It is undefined where the original helps less than a hundredth (one point of accuracy)
more than an untrained model does: a share of nothing means nothing. It is never undefined for
being noisy, since leaving noisy attacks out would flatter the defence; its interval says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from immunis.core.controls import REACH
from immunis.core.errors import InputError

LEAST_HELP = 0.01
COSTS = ("steps", "samples", "flops", "seconds")
Curve = Sequence[Mapping[str, float]]


def interval(values: Sequence[float], level: float = 0.95) -> dict[str, Any]:
    """Mean and Student-t interval of a few repeats.

    >>> interval([1.0, 1.0, 1.0])["high"]
    1.0
    """
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level}.")
    kept = [v for v in values if not math.isnan(v)]
    if not kept:
        return {"mean": math.nan, "low": math.nan, "high": math.nan, "values": list(values)}
    mean = _mean(kept)
    if len(kept) < 2 or not all(map(math.isfinite, kept)):  # one run says nothing of its spread
        return {"mean": mean, "low": math.nan, "high": math.nan, "values": list(values)}
    reach = _quantile(len(kept), level) * _deviation(kept) / math.sqrt(len(kept))
    return {"mean": mean, "low": mean - reach, "high": mean + reach, "values": list(values)}


def _quantile(repeats: int, level: float = 0.95) -> float:
    """Student's t: how many standard errors an interval reaches to either side."""
    from scipy import stats

    return float(stats.t.ppf((1 + level) / 2, repeats - 1))


def _unit(values: Sequence[float] | np.ndarray) -> tuple[np.ndarray, int]:
    """Finite values at unit scale, where sums and squares fit, and the power of two taken out.

    R² of a probe that diverged may lie near the end of float64's range.
    """
    array = np.asarray(values, float)
    exponent = int(np.frexp(np.abs(array).max())[1])
    return np.ldexp(array, -exponent), exponent


def _mean(values: Sequence[float] | np.ndarray) -> float:
    """Mean of scores; that of opposite infinities is NaN."""
    if not all(map(math.isfinite, values)):
        return float(sum(map(float, values)))
    scaled, exponent = _unit(values)
    return float(np.ldexp(scaled.mean(), exponent))


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation of finite values about their mean, over n − 1."""
    scaled, exponent = _unit(values)
    return float(np.ldexp(scaled.std(ddof=1), exponent))


def stopped(curve: Curve) -> list[dict[str, float]]:
    """The curve an attacker sees who keeps the weights that validated best so far."""
    best, kept = -math.inf, []
    test = -math.inf
    for point in curve:
        if point["validation"] > best:
            best, test = point["validation"], point["test"]
        kept.append({**{cost: point[cost] for cost in COSTS}, "score": test})
    return kept


def cost_to_reach(curve: Curve, target: float) -> dict[str, float]:
    """Cost at the first point of a stopped curve at or above the target; ∞ if there is none."""
    for point in curve:
        if point["score"] >= target:
            return {cost: point[cost] for cost in COSTS}
    return dict.fromkeys(COSTS, math.inf)


def residual_advantage(defended: float, original: float, untrained: float) -> float:
    """Share of the original's advantage over an untrained model that is left, at least 0.

    >>> residual_advantage(0.5, 0.9, 0.1), residual_advantage(0.05, 0.9, 0.1)
    (0.5, 0.0)
    """
    share = _share(defended, original, untrained)
    return share if math.isnan(share) else max(0.0, share)


def _share(defended: float, original: float, untrained: float) -> float:
    """The same before it is clipped: negative below untrained features."""
    gain = original - untrained
    if not gain >= LEAST_HELP or not math.isfinite(gain):
        return math.nan
    share = (defended - untrained) / gain
    return share if math.isfinite(share) else math.nan


def summarise(
    outcomes: Mapping[str, Sequence[Mapping[str, Any]]], original: str, control: str, chance: float
) -> dict[str, Any]:
    """Figures of one attack: outcomes of each model, one per seed, compared with each other.

    Args:
        outcomes: by model, one outcome per seed, ``{"status": "done", "curve": [...], ...}``.
        original: name of the undefended model.
        control: name of the untrained model.
        chance: score of the best constant answer.
    """
    rows: dict[str, Any] = {}
    finals: dict[str, list[float]] = {}
    curves: dict[str, list[list[dict[str, float]]]] = {}
    for model, runs in outcomes.items():
        bad = [run for run in runs if run["status"] != "done"]
        if bad:
            rows[model] = {"status": bad[0]["status"], "reason": bad[0]["reason"]}
            continue
        curves[model] = [stopped(run["curve"]) for run in runs]
        finals[model] = [curve[-1]["score"] for curve in curves[model]]
        rows[model] = {
            "status": "done",
            "score": interval(finals[model]),
            "curve": _mean_curve(curves[model]),
            "settings": [run["settings"] for run in runs],
            "trials": runs[0]["trials"],
            "runs": runs[0]["runs"],
            "search_flops": float(np.mean([run["search_flops"] for run in runs])),
            "seconds": float(np.sum([run["seconds"] for run in runs])),
            "notes": sorted({note for run in runs for note in run.get("notes", ())}),
        }
        if not rows[model]["score"]["mean"] > chance:
            rows[model]["notes"].append("does not beat chance: defended well, or did not train")
    if original not in finals:
        return rows
    target = chance + REACH * (_mean(finals[original]) - chance)
    paid = {
        model: {
            cost: float(np.median([cost_to_reach(c, target)[cost] for c in runs])) for cost in COSTS
        }
        for model, runs in curves.items()
    }
    for model in finals:
        rows[model]["cost"] = paid[model]
        rows[model]["multiplier"] = {
            cost: _ratio(paid[model][cost], paid[original][cost]) for cost in COSTS
        }
        if control in finals and model != control:
            rows[model]["residual_advantage"] = advantage(
                finals[model], finals[original], finals[control]
            )
    return rows


def advantage(
    defended: Sequence[float], original: Sequence[float], untrained: Sequence[float]
) -> dict[str, float]:
    """Residual advantage of scores, one a seed: of their means, with an interval by jackknife.

    Student's t, of shares as they are: clipped only at the end, since the spread of shares that
    were each clipped at 0 would be too small.

    >>> advantage([0.0, 0.1, 0.2], [0.9, 0.9, 0.9], [0.1, 0.1, 0.1])["high"] > 0.3
    True
    """
    arrays = [np.asarray(v, float) for v in (defended, original, untrained)]
    counts = {len(array) for array in arrays}
    if len(counts) > 1 or 0 in counts:
        raise InputError(f"scores of {[len(a) for a in arrays]} seeds; expected as many of each.")
    means = [_mean(array) for array in arrays]
    share, mean, n = _share(*means), residual_advantage(*means), len(arrays[0])
    if math.isnan(share) or n < 2:  # one run says nothing of its spread
        return {"mean": mean, "low": math.nan, "high": math.nan}
    left = [_share(*(_mean(np.delete(a, i)) for a in arrays)) for i in range(n)]
    if any(map(math.isnan, left)):  # one seed decides whether there is any help at all
        return {"mean": mean, "low": 0.0, "high": math.inf}
    reach = _quantile(n) * (n - 1) / math.sqrt(n) * _deviation(left)
    return {"mean": mean, "low": max(0.0, share - reach), "high": max(0.0, share + reach)}


def _ratio(paid: float, base: float) -> float:
    if math.isinf(base):
        return math.nan
    return paid / base if base > 0 else math.inf


def _mean_curve(curves: Sequence[Curve]) -> list[dict[str, float]]:
    """Mean, lowest and highest score over seeds at every step that any seed was scored at."""
    steps = sorted({int(point["steps"]) for curve in curves for point in curve})
    rows = []
    for step in steps:
        known = [[p for p in curve if p["steps"] <= step] for curve in curves]
        if not all(known):
            continue
        last = [points[-1] for points in known]
        scores = [p["score"] for p in last]
        rows.append(
            {
                "steps": step,
                "flops": float(np.mean([p["flops"] for p in last])),
                "mean": _mean(scores),
                "low": min(scores),
                "high": max(scores),
            }
        )
    return rows


def _best_score(attacks: Mapping[str, Any], model: str) -> float:
    """Highest mean score any attack reaches on a model."""
    rows = [rows.get(model, {}) for rows in attacks.values()]
    return max((r["score"]["mean"] for r in rows if r.get("status") == "done"), default=math.nan)


def worst_case(
    attacks: Mapping[str, Any], model: str, original: str, control: str
) -> dict[str, Any]:
    """The attack with the largest residual advantage, and the one that scores highest.

    ``gain`` is what the worst attack scores above the same attack on the untrained control: a
    large ratio of a small gain may be noise, and its interval says so. ``undefined``,
    ``failed`` and ``inapplicable`` count the attacks that could not be ranked. ``overall`` is
    the residual advantage of an attacker who picks the best attack for each model: the best
    score on it, on the original and on the untrained control.
    """
    statuses = [rows.get(model, {}).get("status") for rows in attacks.values()]
    counts = {
        "attacks": statuses.count("done"),
        "failed": statuses.count("failed"),
        "inapplicable": statuses.count("not applicable"),
    }
    done = {
        name: rows[model]
        for name, rows in attacks.items()
        if rows.get(model, {}).get("status") == "done"
    }
    if not done:
        none = dict.fromkeys(("accuracy", "residual_advantage", "overall"), math.nan)
        named = {"attack": None, "highest_attack": None, "highest_accuracy": math.nan}
        return {**named, **none, **counts, "undefined": 0}
    kept = {
        name: row["residual_advantage"]["mean"]
        for name, row in done.items()
        if not math.isnan(row.get("residual_advantage", {"mean": math.nan})["mean"])
    }
    highest = max(done, key=lambda name: done[name]["score"]["mean"])
    attack = max(kept, key=lambda name: (kept[name], done[name]["score"]["mean"]), default=highest)
    row = done[attack]
    return {
        "attack": attack,
        "accuracy": row["score"]["mean"],
        "residual_advantage": kept.get(attack, math.nan),
        "overall": residual_advantage(
            *(_best_score(attacks, name) for name in (model, original, control))
        ),
        "gain": row["score"]["mean"]
        - attacks[attack].get(control, {}).get("score", {}).get("mean", math.nan),
        "interval": row.get("residual_advantage"),
        "multiplier": row.get("multiplier"),
        "highest_accuracy": done[highest]["score"]["mean"],
        "highest_attack": highest,
        "undefined": len(done) - len(kept),
        **counts,
    }


def predictors(
    attacks: Mapping[str, Any], models: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """Spearman correlation of each cheap figure with what attackers reach and what they pay.

    Pairs are (attack, model) over the undefended and defended models; ``score`` is against the
    test score, ``cost`` against the multiplier in steps (∞ ranks last). A figure that foretold
    protection would fall with the score and rise with the cost (κ_H, RIR), or the reverse (ρ).
    """
    found: dict[str, Any] = {}
    for figure in ("kappa_harmful", "rir", "rho"):
        pairs = [
            (models[model][figure], rows[model])
            for rows in attacks.values()
            for model in names
            if rows.get(model, {}).get("status") == "done" and _known(models[model][figure])
        ]
        costs = [(x, row["multiplier"]["steps"]) for x, row in pairs if "multiplier" in row]
        found[figure] = {
            "score": _spearman([(x, row["score"]["mean"]) for x, row in pairs]),
            "cost": _spearman([(x, cost) for x, cost in costs if not math.isnan(cost)]),
            "pairs": len(pairs),
        }
    return found


def _known(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Rank correlation; NaN where there is nothing to rank."""
    from scipy import stats

    if len(pairs) < 3 or any(len({p[side] for p in pairs}) < 2 for side in (0, 1)):
        return math.nan
    ranks = [stats.rankdata([p[side] for p in pairs]) for side in (0, 1)]
    return float(np.corrcoef(*ranks)[0, 1])
