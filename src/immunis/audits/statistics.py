"""From learning curves to what they mean: intervals, advantage, cost, worst case.

*Residual advantage* of an attack on a defended model is ``(defended − untrained) /
(original − untrained)``, clipped at 0: the share of the original model's help that the attacker
keeps. It is undefined where the original helps less than a hundredth (one point of accuracy)
more than an untrained model does: a share of nothing means nothing. It is never left out for
being noisy, since that would flatter the defence; its interval shows the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median, stdev  # exact sums: a diverged R² may be near float64's end
from typing import Any

from immunis.core.controls import REACH
from immunis.core.errors import InputError

LEAST_HELP = 0.01
COSTS = ("steps", "samples", "flops", "seconds")
Curve = Sequence[Mapping[str, float]]


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Return the mean of a few repeats with its 95% Student-t interval; NaN values are left out.

    >>> interval([1.0, 1.0, 1.0])["high"]
    1.0
    """
    kept = [v for v in values if not math.isnan(v)]
    middle = mean(kept) if kept else math.nan
    reach = math.nan  # one run says nothing of its spread
    if len(kept) > 1 and all(map(math.isfinite, kept)):
        reach = _quantile(len(kept)) * stdev(kept) / math.sqrt(len(kept))
    return {"mean": middle, "low": middle - reach, "high": middle + reach, "values": list(values)}


def _quantile(repeats: int) -> float:
    """Return how many standard errors a 95% interval reaches to either side."""
    from scipy import stats

    return float(stats.t.ppf(0.975, repeats - 1))


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


def residual_advantage(defended: float, original: float, untrained: float) -> float:
    """Return the share of the original's advantage over an untrained model that is left, ≥ 0.

    >>> residual_advantage(0.5, 0.9, 0.1), residual_advantage(0.05, 0.9, 0.1)
    (0.5, 0.0)
    """
    share = _share(defended, original, untrained)
    return share if math.isnan(share) else max(0.0, share)


def _share(defended: float, original: float, untrained: float) -> float:
    """Return the same before it is clipped: negative below untrained features."""
    gain = original - untrained
    if not LEAST_HELP <= gain < math.inf:
        return math.nan
    share = (defended - untrained) / gain
    return share if math.isfinite(share) else math.nan


def advantage(
    defended: Sequence[float], original: Sequence[float], untrained: Sequence[float]
) -> dict[str, float]:
    """Return the residual advantage of mean scores, with a Student-t interval by jackknife.

    Shares are clipped only at the end: clipping each at 0 would make their spread too small.

    >>> advantage([0.0, 0.1, 0.2], [0.9, 0.9, 0.9], [0.1, 0.1, 0.1])["high"] > 0.3
    True
    """
    scores, n = [list(map(float, s)) for s in (defended, original, untrained)], len(defended)
    if not n or {len(s) for s in scores} != {n}:
        raise InputError(f"scores of {[len(s) for s in scores]} seeds; expected as many of each.")
    share = _share(*map(mean, scores))
    middle = residual_advantage(*map(mean, scores))
    if math.isnan(share) or n < 2:  # one run says nothing of its spread
        return {"mean": middle, "low": math.nan, "high": math.nan}
    left = [_share(*(mean(s[:i] + s[i + 1 :]) for s in scores)) for i in range(n)]
    if any(map(math.isnan, left)):  # one seed decides whether there is any help at all
        return {"mean": middle, "low": 0.0, "high": math.inf}
    reach = _quantile(n) * (n - 1) / math.sqrt(n) * stdev(left)
    return {"mean": middle, "low": max(0.0, share - reach), "high": max(0.0, share + reach)}


def summarise(
    outcomes: Mapping[Any, Sequence[Mapping[str, Any]]], original: Any, control: str, chance: float
) -> dict[str, Any]:
    """Compare the outcomes of one attack: by model, one result of ``run_attack`` for each seed.

    ``original`` names the undefended model and ``control`` the untrained one; ``chance`` is the
    score of the best constant answer.
    """
    rows: dict[str, Any] = {}
    curves: dict[str, list[list[dict[str, float]]]] = {}
    for model, runs in outcomes.items():
        bad = [run for run in runs if run["status"] != "done"]
        if bad:
            rows[model] = {"status": bad[0]["status"], "reason": bad[0]["reason"]}
            continue
        curves[model] = [stopped(run["curve"]) for run in runs]
        rows[model] = {
            "status": "done",
            "score": interval([curve[-1]["score"] for curve in curves[model]]),
            "curve": [_mean_point(*each) for each in last_points(curves[model])],
            "settings": [run["settings"] for run in runs],
            "trials": runs[0]["trials"],
            "runs": runs[0]["runs"],
            "search_flops": mean(run["search_flops"] for run in runs),
            "seconds": sum(run["seconds"] for run in runs),
            "notes": sorted({note for run in runs for note in run.get("notes", ())}),
        }
        if not rows[model]["score"]["mean"] > chance:
            rows[model]["notes"].append("does not beat chance: defended well, or did not train")
    if original not in curves:
        return rows
    finals = {model: rows[model]["score"]["values"] for model in curves}
    target = chance + REACH * (mean(finals[original]) - chance)
    for model, of in curves.items():
        paid = [cost_to_reach(curve, target) for curve in of]
        rows[model]["cost"] = {cost: float(median(p[cost] for p in paid)) for cost in COSTS}
    base = rows[original]["cost"]
    for model in curves:
        rows[model]["multiplier"] = {c: _ratio(rows[model]["cost"][c], base[c]) for c in COSTS}
        if control in finals and model != control:
            scores = finals[model], finals[original], finals[control]
            rows[model]["residual_advantage"] = advantage(*scores)
    return rows


def _ratio(paid: float, base: float) -> float:
    if math.isinf(base):
        return math.nan
    return paid / base if base > 0 else math.inf


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


def worst_case(
    attacks: Mapping[str, Any], model: str, original: str, control: str
) -> dict[str, Any]:
    """Return the attack with the largest residual advantage, and the one that scores highest.

    ``gain`` is what the worst attack scores above the same attack on the untrained control: a
    large ratio of a small gain may be noise, and its interval says so. ``undefined``,
    ``failed`` and ``inapplicable`` count the attacks that could not be ranked. ``overall`` is
    the residual advantage of an attacker who picks the best attack for each model.
    """
    statuses = [rows.get(model, {}).get("status") for rows in attacks.values()]
    words = {"attacks": "done", "failed": "failed", "inapplicable": "not applicable"}
    counts = {key: statuses.count(status) for key, status in words.items()}

    def done(name: str) -> dict[str, Any]:
        known = {attack: rows.get(name, {}) for attack, rows in attacks.items()}
        return {attack: row for attack, row in known.items() if row.get("status") == "done"}

    def best(name: str) -> float:
        return max((row["score"]["mean"] for row in done(name).values()), default=math.nan)

    rows = done(model)
    if not rows:
        figures = ("accuracy", "residual_advantage", "overall", "highest_accuracy")
        none = {"attack": None, "highest_attack": None, **dict.fromkeys(figures, math.nan)}
        return {**none, **counts, "undefined": 0}
    shares = {n: row.get("residual_advantage", {}).get("mean", math.nan) for n, row in rows.items()}
    kept = {name: share for name, share in shares.items() if not math.isnan(share)}
    highest = max(rows, key=lambda name: rows[name]["score"]["mean"])
    attack = max(kept, key=lambda name: (kept[name], rows[name]["score"]["mean"]), default=highest)
    row, untrained = rows[attack], attacks[attack].get(control, {}).get("score", {})
    return {
        "attack": attack,
        "accuracy": row["score"]["mean"],
        "residual_advantage": shares[attack],
        "overall": residual_advantage(best(model), best(original), best(control)),
        "gain": row["score"]["mean"] - untrained.get("mean", math.nan),
        "interval": row.get("residual_advantage"),
        "multiplier": row.get("multiplier"),
        "highest_accuracy": rows[highest]["score"]["mean"],
        "highest_attack": highest,
        "undefined": len(rows) - len(kept),
        **counts,
    }


def predictors(
    attacks: Mapping[str, Any], models: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """Return the Spearman correlation of each cheap figure with scores and costs of attacks.

    Pairs are (attack, model) over the undefended and defended models; ``score`` is against the
    test score, ``cost`` against the multiplier in steps (∞ ranks last). A figure that foretold
    protection would fall with the score and rise with the cost (κ_H, RIR), or the reverse (ρ).
    """
    found: dict[str, Any] = {}
    for figure in ("kappa_harmful", "rir", "rho"):
        every = [(models[m][figure], rows.get(m, {})) for rows in attacks.values() for m in names]
        done = [(x, row) for x, row in every if row.get("status") == "done"]
        pairs = [(x, row) for x, row in done if x is not None and not math.isnan(x)]
        costs = [(x, row["multiplier"]["steps"]) for x, row in pairs if "multiplier" in row]
        found[figure] = {
            "score": _spearman([(x, row["score"]["mean"]) for x, row in pairs]),
            "cost": _spearman([(x, cost) for x, cost in costs if not math.isnan(cost)]),
            "pairs": len(pairs),
        }
    return found


def _spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the rank correlation; NaN where there is nothing to rank."""
    from scipy import stats

    if len(pairs) < 3 or any(len({p[side] for p in pairs}) < 2 for side in (0, 1)):
        return math.nan
    return float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)
