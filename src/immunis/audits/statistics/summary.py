"""What the attacks of an audit say together: points first, then shares, then the worst case.

Every difference is in units of the score, with a 95% interval over trainings, attackers and test
rows. *Residual advantage*, the share of the original model's help that an attacker keeps, is
``(defended − untrained) / (original − untrained)``. It is given where the denominator exceeds three
of its standard errors. A share of nothing means nothing. It is not clipped.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import mean  # exact sums: a diverged R² may be near float64's end
from typing import Any

import numpy as np

from immunis.attacks.rising import still_rising
from immunis.audits.statistics.bootstrap import (
    Design,
    Estimate,
    combined,
    difference,
    interval,
    largest,
    replicated,
    spread,
)
from immunis.audits.statistics.cost import add_costs, mean_curve, stopped
from immunis.core.kept import kept
from immunis.core.packing import unpacked
from immunis.core.shapes import Share
from immunis.theory.score_interval import finest

CERTAIN = 3  # standard errors by which the original must help before a share of its help is given
NO_HELP = "original does not help"
Results = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]  # by attack and model, one a run
Estimates = dict[tuple[str, str], Estimate]  # scores by attack and model
Table = dict[str, dict[str, Any]]


def summarise(
    results: Results, design: Design, rows: int, original: str, control: str, chance: float
) -> tuple[Table, Estimates]:
    """Return one row for each attack and model, and the scores with their replicates.

    Args:
        results: by attack and model, what ``run_attack`` returned of each run: variant by variant,
            each with every seed.
        design: what varies.
        rows: number of test rows.
        original: name of the undefended model.
        control: name of the untrained one.
        chance: score of the best constant answer.
    """
    table: Table = {attack: {} for attack in results}
    hits, finals = {}, {}
    for attack, by_model in results.items():
        curves = {}
        for model, runs in by_model.items():
            if bad := [run for run in runs if run["status"] != "done"]:
                table[attack][model] = {"status": bad[0]["status"], "reason": bad[0]["reason"]}
                continue
            curves[model] = [stopped(run["curve"]) for run in runs]
            values = [curve[-1]["score"] for curve in curves[model]]
            finals[attack, model] = values
            hits[attack, model] = _answers(runs, values, rows)
            table[attack][model] = _row(runs, curves[model], values, chance)
        if original in curves:
            add_costs(table[attack], curves, original, chance)
    found = replicated(hits, design, lambda key: key[1])
    scores = {key: of._replace(point=mean(finals[key])) for key, of in found.items()}
    for (attack, model), of in scores.items():
        row = table[attack][model]
        row["score"] = {**interval(of), "values": finals[attack, model]}
        against = {
            "untrained": scores.get((attack, control)),
            "original": scores.get((attack, original)),
        }
        for name, other in against.items():
            if other is not None and other is not of:
                row[f"above_{name}"] = interval(difference(of, other))
        if None not in against.values() and model != control:
            row["residual_advantage"] = share(of, *against.values())[1]  # type: ignore[arg-type]
    return table, scores


def _row(
    runs: Sequence[Mapping[str, Any]],
    curves: Sequence[Sequence[Mapping[str, float]]],
    values: Sequence[float],
    chance: float,
) -> dict[str, Any]:
    """Return what is known of one attack on one model without comparing it with others."""
    notes = sorted({note for run in runs for note in run.get("notes", ())})
    if not mean(values) > chance:
        notes.append("does not beat chance: defended well, or did not train")
    searched = [run for run in runs if run.get("rates")]  # it tunes a network
    rising = [still_rising(run["curve"]) for run in searched]
    if any(rising):
        notes.append(f"still rising when the budget ended, in {sum(rising)} of {len(runs)} runs")
    return {
        "status": "done",
        "score": {},
        "curve": mean_curve(curves),
        "hits": [run.get("hits") for run in runs],
        "settings": [run["settings"] for run in runs],
        "trials": runs[0]["trials"],
        "runs": runs[0]["runs"],
        "search_flops": mean(run["search_flops"] for run in runs),
        "seconds": sum(run["seconds"] for run in runs),
        "notes": notes,
        **({key: [run[key] for run in searched] for key in ("rates", "spent")} if searched else {}),
        **({"layers": layers} if (layers := _layers(runs)) else {}),
    }


def _layers(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean score at each layer that all runs tried; nothing where they tried one."""
    tried = [run.get("layers", {}) for run in runs]
    shared = [at for at in tried[0] if all(at in each for each in tried)]
    return {at: mean(each[at] for each in tried) for at in shared} if len(shared) > 1 else {}


def _answers(runs: Sequence[Mapping[str, Any]], values: Sequence[float], rows: int) -> np.ndarray:
    """Return how each run answered each test row; all rows alike in a run that does not say."""
    packs = [pack for run in runs if (pack := run.get("hits")) is not None]
    if len(packs) == len(runs):
        return np.stack([unpacked(pack) for pack in packs])
    return np.stack([np.full(rows, (1 - value) / rows) for value in values])


def share(
    defended: Estimate, untrained: Estimate, original: Estimate
) -> tuple[Estimate | None, Share]:
    """Return the residual advantage, and what a record keeps of it.

    It is None with the reason where the original helps by less than three standard errors.
    """
    help_ = difference(original, untrained)
    if not CERTAIN * spread(help_) < help_.point < math.inf:
        return None, {"mean": None, "low": None, "high": None, "reason": NO_HELP}
    found = combined(lambda d, u, o: (d - u) / (o - u), defended, untrained, original)
    if not math.isfinite(found.point):
        return None, {"mean": None, "low": None, "high": None, "reason": "diverged"}
    return found, {**interval(found)}


def worst_case(
    table: Table,
    scores: Estimates,
    model: str,
    original: str,
    control: str,
    known: Collection[str] = (),
) -> dict[str, Any]:
    """Return the attack that gains most, the one that keeps most, and the one that scores highest.

    ``gain`` is what an attack scores above the same attack on the untrained control, and
    ``residual_advantage`` the share it keeps; each is the largest over attacks, chosen anew in
    every replicate. ``to_original`` compares the best attack on the model with the best on the
    original, ``overall`` is the share of an attacker who picks the best for each model. ``unseen``
    has the same over the attacks alone that no defence trains or stops against (``known`` names
    the others). ``undefined``, ``failed`` and ``inapplicable`` count attacks without a share.
    """
    statuses = [rows.get(model, {}).get("status") for rows in table.values()]
    failed, inapplicable = (statuses.count(s) for s in ("failed", "not applicable"))
    found = _worst(table, scores, model, original, control)
    others = {attack: rows for attack, rows in table.items() if attack not in known}
    unseen = _worst(others, scores, model, original, control)
    return {**found, "unseen": unseen, "failed": failed, "inapplicable": inapplicable}


def _worst(
    table: Table, scores: Estimates, model: str, original: str, control: str
) -> dict[str, Any]:
    """Return the worst case over the attacks of a table."""

    def of(name: str) -> dict[str, Estimate]:
        known = {attack: scores.get((attack, name)) for attack in table}
        return {attack: each for attack, each in known.items() if each is not None}

    mine, theirs, bare = of(model), of(original), of(control)
    both = {a: difference(mine[a], bare[a]) for a in mine if a in bare}
    gains = {a: gain for a, gain in both.items() if math.isfinite(gain.point)}
    kept = {a: share(mine[a], bare[a], theirs[a])[0] for a in mine if a in bare and a in theirs}
    shares = {attack: each for attack, each in kept.items() if each is not None}
    best = [largest(list(each.values())) if each else None for each in (mine, bare, theirs)]
    highest = _first(mine)
    attack = _first(gains) or highest
    gain, most = (largest(list(each.values())) if each else None for each in (gains, shares))
    overall = share(best[0], best[1], best[2])[1] if all(best) else None  # type: ignore[arg-type]
    both_known = best[0] and best[2] and model != original
    to_original = difference(best[0], best[2]) if both_known else None  # type: ignore[arg-type]
    return {
        "attack": attack,
        "accuracy": mine[attack].point if attack else math.nan,
        "gain": gain.point if gain else math.nan,
        "gain_interval": interval(gain, selected=len(gains) > 1) if gain else None,
        "to_original": interval(to_original) if to_original else None,
        "residual_advantage": most.point if most else None,
        "share_attack": _first(shares),
        "interval": interval(most, selected=len(shares) > 1) if most else None,
        "overall": overall["mean"] if overall else None,
        "multiplier": table[attack][model].get("multiplier") if attack else None,
        "highest_accuracy": mine[highest].point if highest else math.nan,
        "highest_attack": highest,
        "attacks": len(mine),
        "undefined": len(mine) - len(shares),
    }


def _first(estimates: Mapping[str, Estimate]) -> str | None:
    """Return the attack with the largest figure, the first of equals; None where there is none."""
    return max(estimates, key=lambda attack: estimates[attack].point, default=None)


def non_inferiority(
    hits: Mapping[str, np.ndarray], design: Design, against: Collection[str], tolerance: float
) -> dict[str, dict[str, Any]]:
    """Return by model how its primary score differs from that of others, with intervals.

    ``hits`` are the answers of each model's variants (variants×rows). A score is kept (``holds``)
    if the whole 95% interval lies above minus the tolerance. ``holds`` is None where so few rows
    could not show that even if no answer changed (``core.kept``); ``finest`` is the loss they could
    exclude. The error of a row has no bound in R², so there it is 0.
    """
    scores = replicated(hits, Design(design.origins, 1), str)
    found: dict[str, dict[str, Any]] = {}
    for name, mine in scores.items():
        least = finest(hits[name].shape[1]) if mine.answers else 0.0
        changes = {
            other: interval(difference(mine, scores[other])) for other in against if other != name
        }
        found[name] = {
            other: {
                **change,
                "finest": least,
                "tolerance": tolerance,
                "holds": kept(change["low"], change["high"], least, tolerance),
            }
            for other, change in changes.items()
        }
    return found
