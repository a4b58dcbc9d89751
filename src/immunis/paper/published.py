"""What the paper printed, and whether we find the same."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from immunis.paper.measures import KINDS
from immunis.report.format import number

FACTORS = {"harmful": "(i)", "primary": "(ii)", "rir": "RIR"}
NEAR = 3.0  # a figure replicates within this factor of the published one
LARGE = 10.0  # "RIR ≫ 1": the paper gives no number; we take one order of magnitude


@cache
def printed(experiment: str) -> dict[str, Any]:
    """Return the paper's figures for ``house-prices`` or ``mnist``, with their sources.

    >>> printed("mnist")["methods"]["algorithm_1"]["rir"]
    [70.04, 3.28]
    """
    text = files("immunis.paper").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)[experiment]


def judge(said: Mapping[str, Any] | None, ours: Mapping[str, Any]) -> dict[str, str]:
    """Compare a published row, both factors and RIR, with ours (their means, by κ).

    A row *replicates* if our three figures lie within a factor of three of the printed ones under
    the released κ, which the paper used, and under the honest κ. It replicates *only with the
    released κ* if they do so under the first alone. The reason gives the ratio of every figure and
    names those that are off. It also says whether the paper's conclusion (RIR ≫ 1 or not) holds.

    >>> said = {"harmful": [20.0, 1.0], "primary": [0.2, 0.1], "rir": [100.0, 1.0]}
    >>> ours = {"harmful": 24.0, "primary": 0.2, "rir": 120.0}
    >>> judge(said, {"released": ours, "honest": {**ours, "harmful": 900.0}})["verdict"]
    'replicates only with the released κ'
    """
    if said is None:
        return {"verdict": "–", "reason": "not in the paper"}
    parts, off = [], {}
    for kind in KINDS:
        ratios = {name: ours[kind][f] / float(said[f][0]) for f, name in FACTORS.items()}
        off[kind] = [name for name, ratio in ratios.items() if not 1 / NEAR <= ratio <= NEAR]
        times = ", ".join(f"{name} {_times(ratio)}" for name, ratio in ratios.items())
        missed = f" (off: {', '.join(off[kind])})" if off[kind] else ""
        parts.append(f"{kind} κ: {times}{missed}")
    verdict = "replicates only with the released κ" if off["honest"] else "replicates"
    if off["released"]:
        verdict = "does not replicate"
    large = said["rir"][0] >= LARGE
    agree = [kind for kind in KINDS if (ours[kind]["rir"] >= LARGE) == large]
    conclusion = "≫ 1" if large else "not ≫ 1"
    parts.append(f"“RIR {conclusion}” holds under {' and '.join(agree) or 'neither'} κ")
    return {"verdict": verdict, "reason": "; ".join(parts)}


def _times(ratio: float) -> str:
    if not math.isfinite(ratio) or 1 / 1.05 < ratio < 1.05:
        return "the same" if math.isfinite(ratio) else "no finite figure"
    return f"{number(ratio)} times" if ratio >= 1 else f"1/{number(1 / ratio)}"


def compare(
    said: Mapping[str, Any] | None, cells: Sequence[tuple[Any, Mapping[str, Any]]], word: str = ""
) -> dict[str, Any]:
    """Return a row: both factors and RIR under both κ over all runs, with the verdict on them.

    As in the paper's tables a figure is the mean over task pairs; its mean and deviation (ddof 1)
    are over seeds. The median over all runs is beside them, since one extreme pair cannot move it.
    A row that loses half of its runs does not replicate.

    Args:
        said: what the paper printed, if anything.
        cells: the seed of every run with its ``ratios``, or with why it ``failed``.
        word: says how runs fail; the commonest reason if left out.
    """
    reasons = [cell["failed"] for _, cell in cells if "failed" in cell]
    row: dict[str, Any] = {"published": said, "runs": len(cells), "failed": len(reasons)}
    why = max(sorted(set(reasons)), key=reasons.count, default="")  # the commonest
    if len(reasons) == len(cells):
        row["verdict"] = "does not replicate" if said else "–"
        return {**row, "reason": f"every run {word}" if word else why}
    found = [(seed, cell["ratios"]) for seed, cell in cells if "ratios" in cell]
    for kind in KINDS:
        row[kind] = {f: _spread([(seed, each[kind][f]) for seed, each in found]) for f in FACTORS}
    row |= judge(said, {kind: {f: row[kind][f]["mean"] for f in FACTORS} for kind in KINDS})
    if reasons:
        row["reason"] += f"; {len(reasons)} of {len(cells)} runs {word or f'failed: {why}'}"
        if said and 2 * len(reasons) >= len(cells):
            row["verdict"] = "does not replicate"
    return row


def _spread(values: Sequence[tuple[Any, float]]) -> dict[str, Any]:
    """Return mean and deviation over seeds of the means over pairs, and the median of all."""
    seeds = dict.fromkeys(seed for seed, _ in values)
    means = [float(np.mean([value for each, value in values if each == seed])) for seed in seeds]
    return {
        "mean": float(np.mean(means)),
        "std": float(np.std(means, ddof=1)) if len(means) > 1 else math.nan,
        "values": means,
        "median": float(np.median([value for _, value in values])),
    }
