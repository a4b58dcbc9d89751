"""From the runs of one MNIST protocol to rows of a table and maps over digit pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from immunis.paper.attackers import ATTACKS, ORIGINAL, paid
from immunis.paper.judgement import FACTORS, KINDS, LARGE, judge, means, spread, with_failures
from immunis.paper.methods import ROWS

Runs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Line:
    """A row to make: the method, with which step and epochs, and its name in the runs."""

    name: str
    method: str
    step: float | None = None
    epochs: int | None = None


def summarise_protocol(
    runs: Runs, lines: Sequence[Line], said: Mapping[str, Any]
) -> dict[str, Any]:
    """Rows, maps, ceilings and attackers of one protocol.

    The paper's table gives the mean over pairs, then mean and deviation over seeds; so do we, and
    add the median over pairs, which one extreme pair cannot move.

    Args:
        runs: results of the sweep's jobs; those with ``seed`` None hold what needs no seed.
        lines: rows in the order of the table; those that no run holds are left out.
        said: what the paper printed of this protocol, by row of its table.
    """
    fixed = {tuple(run["pair"]): run for run in runs if run["seed"] is None}
    rows, maps = [], {}
    for line in lines:
        name, method = line.name, ROWS[line.method]
        mine = [run for run in runs if name in run["methods"]]
        if not mine:
            continue
        done = [run for run in mine if "ratios" in run["methods"][name]]
        row: dict[str, Any] = {
            "name": name,
            "method": method.name,
            "label": method.label,
            "step": line.step,
            "epochs": line.epochs,
            "published": said.get(method.said or ""),
            "runs": len(mine),
            "failed": len(mine) - len(done),
        }
        if done:
            row |= _factors(done, name)
            judged = judge(row["published"], means(row))
            what = f"failed: {_why(mine, name)}" if row["failed"] else ""
            row |= with_failures(judged, row["failed"], len(mine), what)
            maps[name] = {kind: _map(done, name, kind) for kind in KINDS}
            row["successes"] = {kind: _count(maps[name][kind]) for kind in KINDS}
        else:
            row |= {"verdict": "–", "reason": _why(mine, name)}
        row["attacks"] = _attacked(runs, name)
        rows.append(row)
    return {
        "rows": rows,
        "maps": maps,
        "pairs": {
            f"{p} {h}": {
                "ceiling": run["figures"]["ceiling"],
                "ridge_ceiling": run["figures"]["ridge_ceiling"],
                "free_directions": run["figures"]["free_directions"],
                "kappa": [
                    run["figures"][side][kind] for side in ("primary", "harmful") for kind in KINDS
                ],
                "ranks": [run["figures"][side]["rank"] for side in ("primary", "harmful")],
                "dimension": run["figures"]["primary"]["dimension"],
            }
            for (p, h), run in sorted(fixed.items())
        },
        "identity": _attacked(runs, ORIGINAL),
    }


def _why(runs: Runs, name: str) -> str:
    """The commonest reason why a method found nothing."""
    reasons = [run["methods"][name]["failed"] for run in runs if "failed" in run["methods"][name]]
    return max(sorted(set(reasons)), key=reasons.count)


def _factors(done: Runs, name: str) -> dict[str, Any]:
    """Both factors and RIR under both κ: mean over pairs, then over seeds."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        found[kind] = {}
        for factor in FACTORS:
            by_seed: dict[Any, list[float]] = {}
            for run in done:
                value = run["methods"][name]["ratios"][kind][factor]
                by_seed.setdefault(run["seed"], []).append(value)
            every = [value for values in by_seed.values() for value in values]
            found[kind][factor] = {
                **spread([float(np.mean(values)) for values in by_seed.values()]),
                "median": float(np.median(every)),
            }
    return found


def _map(done: Runs, name: str, kind: str) -> list[list[float | None]]:
    """Log RIR of each pair (row: primary, column: harmful), mean over seeds; None where not run."""
    cells: dict[tuple[int, int], list[float]] = {}
    for run in done:
        value = run["methods"][name]["ratios"][kind]["rir"]
        cells.setdefault((run["pair"][0], run["pair"][1]), []).append(math.log(value))
    return [
        [round(float(np.mean(cells[p, h])), 4) if (p, h) in cells else None for h in range(10)]
        for p in range(10)
    ]


def _count(cells: Sequence[Sequence[float | None]]) -> dict[str, int]:
    """How many pairs succeed: RIR of at least ten, and (the weakest reading) above one."""
    known = [value for line in cells for value in line if value is not None]
    return {
        "pairs": len(known),
        "large": sum(value >= math.log(LARGE) for value in known),
        "above_one": sum(value > 0 for value in known),
    }


def _attacked(runs: Runs, name: str) -> dict[str, Any]:
    """What each attack reads over the pairs: mean accuracy at a few steps, and its cost."""
    inputs = {
        tuple(run["pair"]): run["methods"][ORIGINAL]["attacks"]
        for run in runs
        if ORIGINAL in run["methods"]
    }
    mine = [run for run in runs if "attacks" in run["methods"].get(name, {})]
    if not mine or not inputs:
        return {}
    each = [
        paid({ORIGINAL: [inputs[tuple(r["pair"])]], "θ": [r["methods"][name]["attacks"]]}, 0.5)["θ"]
        for r in mine
    ]
    found = {}
    for which in ATTACKS:
        good = [row[which] for row in each if "score" in row[which]]
        if not good:
            continue
        curves = np.array([[point["median"] for point in row["curve"]] for row in good])
        steps = [point["steps"] for point in good[0]["curve"]]
        scores = [row["score"]["median"] for row in good]
        found[which] = {
            "score": {"mean": float(np.mean(scores)), "low": min(scores), "high": max(scores)},
            "multiplier": float(np.median([row["multiplier"] for row in good])),
            "curve": [
                {"steps": step, "mean": mean}
                for step, mean in zip(steps, curves.mean(0).tolist(), strict=True)
            ],
            "runs": len(good),
        }
    return found
