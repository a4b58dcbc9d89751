"""What the paper printed, and whether we find the same."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from immunis.paper.measures import KINDS
from immunis.report.format import number
from immunis.theory.definition import definition
from immunis.theory.rir import rir

FACTORS = {"harmful": "(i)", "primary": "(ii)", "rir": "RIR"}
CONDITIONS = {"harmful": "3.1 (a)", "primary": "3.1 (b)"}  # of Definition 3.1, from κ alone
NEAR = 3.0  # a figure replicates within this factor of the published one
LARGE = 10.0  # "RIR ≫ 1": the paper gives no number; we take one order of magnitude
NOISE = 1.5  # a figure that rounding moves by more than this factor is an interval
YES, NO, UNSTABLE, UNTESTED = "yes", "no", "not stable", "not tested at the paper's setting"
Figures = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by κ and factor


@cache
def printed(experiment: str) -> dict[str, Any]:
    """Return the paper's figures for ``house-prices`` or ``mnist``, with their sources.

    >>> printed("mnist")["methods"]["algorithm_1"]["rir"]
    [70.04, 3.28]
    """
    text = files("immunis.paper").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)[experiment]


def replicates(said: Mapping[str, Any], ours: Figures) -> tuple[str, str]:
    """Return whether a row replicates with the released κ, which the paper used, and the ratios.

    It does if both factors and RIR lie within a factor of three of the printed ones, and do so
    again when training starts from weights that differ by rounding.
    """
    verdicts, ratios = set(), []
    for factor, name in FACTORS.items():
        found, wanted = ours["released"][factor], float(said[factor][0])
        ends = {is_near(found[end], wanted) for end in ("mean", "again")}
        verdicts.add(UNSTABLE if len(ends) > 1 else YES if True in ends else NO)
        ratios.append(f"{name} {_times(found['mean'] / wanted)}")
    verdict = next(each for each in (NO, UNSTABLE, YES) if each in verdicts)
    return verdict, ", ".join(ratios)


def is_near(found: float, wanted: float) -> bool:
    """Return True if a figure is within a factor of three of the printed one."""
    return 1 / NEAR <= found / wanted <= NEAR


def holds(said: Mapping[str, Any], ours: Figures) -> tuple[str, str]:
    """Return whether the paper's conclusion (RIR ≫ 1, or not) holds with κ of eq. 1, and RIR.

    It holds if it does in every seed. One seed of five can carry a mean, so "in 3 of 5 seeds" is
    a verdict of its own.
    """
    large, found = said["rir"][0] >= LARGE, ours["honest"]["rir"]
    ends = {(found[end] >= LARGE) == large for end in ("mean", "again")}
    seeds = [(value >= LARGE) == large and value == value for value in found["values"]]
    verdict = {len(seeds): YES, 0: NO}.get(sum(seeds), f"in {sum(seeds)} of {len(seeds)} seeds")
    verdict = UNSTABLE if len(ends) > 1 else verdict
    return verdict, f"“RIR {'≫ 1' if large else 'not ≫ 1'}”: RIR {number(found['mean'])}"


def _times(ratio: float) -> str:
    if not math.isfinite(ratio) or 1 / 1.05 < ratio < 1.05:
        return "the same" if math.isfinite(ratio) else "no finite figure"
    return f"{number(ratio)} times" if ratio >= 1 else f"1/{number(1 / ratio)}"


def compare(
    said: Mapping[str, Any] | None,
    cells: Sequence[tuple[Any, Mapping[str, Any]]],
    tested: bool = True,
) -> dict[str, Any]:
    """Return a row: both factors and RIR under both κ over all runs, with two verdicts on them.

    As in the paper's tables a figure is the mean over task pairs; its mean and deviation (ddof 1)
    are over seeds. The median over all runs is beside them, since one extreme pair cannot move it.
    A row that loses half of its runs does not replicate and does not hold.

    Args:
        said: what the paper printed, if anything.
        cells: the seed of every run with its ``ratios`` (and those of its ``rerun``), or with why
            it ``failed``.
        tested: whether the runs are those of the paper in number and settings.
    """
    reasons = [cell["failed"] for _, cell in cells if "failed" in cell]
    good = [(seed, cell) for seed, cell in cells if "ratios" in cell]
    row: dict[str, Any] = {"published": said, "runs": len(cells), "failed": len(reasons)}
    for kind in KINDS if good else ():
        row[kind] = {factor: _spread(good, kind, factor) for factor in FACTORS}
    if good:
        row["definition"] = _met(cell["ratios"]["honest"] for _, cell in good)
        row["moved"] = sum(is_moved(cell["ratios"]["rounding"]["rir"]) for _, cell in good)
    parts = [f"{len(reasons)} of {len(cells)} runs failed: {_commonest(reasons)}"] * bool(reasons)
    row |= {"replicates": "–", "holds": "–"}
    if said is None:
        parts.insert(0, "not in the paper")
    elif not tested:
        row |= {"replicates": UNTESTED, "holds": UNTESTED}
    elif 2 * len(reasons) >= len(cells):
        row["replicates"] = NO
    else:
        for name, judge in (("replicates", replicates), ("holds", holds)):
            row[name], why = judge(said, row)
            parts.append(f"{'released κ' if judge is replicates else 'κ of eq. 1'}: {why}")
    return row | {"reason": "; ".join(parts)}


def _met(ratios: Iterable[Mapping[str, float]]) -> dict[str, int]:
    """Return in how many runs Definition 3.1 (a) and (b) hold, with κ of eq. 1 and the inputs'."""
    factors = (rir(primary=(1, each["primary"]), harmful=(1, each["harmful"])) for each in ratios)
    found = [definition(each, (None, None)) for each in factors]
    return {name: sum(bool(getattr(each, name).holds) for each in found) for name in CONDITIONS}


def is_moved(values: Sequence[float]) -> bool:
    """Return True if rounding moves a figure by more than a factor of 1.5."""
    return max(values) > NOISE * min(values)


def _commonest(reasons: Sequence[str]) -> str:
    return max(sorted(set(reasons)), key=reasons.count, default="")


def _spread(cells: Sequence[tuple[Any, Mapping[str, Any]]], kind: str, factor: str) -> Any:
    """Return mean and deviation over seeds of the means over pairs, the median, and two checks.

    ``low`` and ``high`` bound what rounding makes of the mean through the final weights.
    ``again`` is the mean if the runs that were run again from a start that differs by rounding
    stand for all: what training makes of it.
    """
    values = [(seed, cell["ratios"][kind][factor]) for seed, cell in cells]
    seeds = dict.fromkeys(seed for seed, _ in values)
    means = [float(np.mean([value for each, value in values if each == seed])) for seed in seeds]
    found, near, again = spread(means), [], 1.0
    mean = found["mean"]
    if kind == "released":
        draws = [cell["ratios"]["rounding"][factor] for _, cell in cells]
        near = [float(np.mean(each)) for each in zip(*draws, strict=True)]
    twice = [cell for _, cell in cells if "rerun" in cell]
    if twice:
        both = [[cell[which][kind][factor] for cell in twice] for which in ("ratios", "rerun")]
        again = float(np.mean(both[1]) / np.mean(both[0]))
    return {
        **found,
        "median": float(np.median([value for _, value in values])),
        "low": min([mean, *near]),
        "high": max([mean, *near]),
        "again": mean * again,
    }


def spread(values: Iterable[float]) -> dict[str, Any]:
    """Return mean, deviation (ddof 1) and values."""
    found = list(values)
    std = float(np.std(found, ddof=1)) if len(found) > 1 else math.nan
    return {"mean": float(np.mean(found)), "std": std, "values": found}
