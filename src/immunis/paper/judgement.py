"""What the paper printed, and whether we found the same."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from immunis.report.format import number

KINDS = ("released", "honest")
FACTORS = {"harmful": "(i)", "primary": "(ii)", "rir": "RIR"}
NEAR = 3.0  # a figure replicates within this factor of the published one
LARGE = 10.0  # "RIR ≫ 1": the paper gives no number; we take one order of magnitude


@cache
def published(experiment: str) -> dict[str, Any]:
    """Return the paper's figures for ``house-prices`` or ``mnist``, with their sources.

    >>> published("mnist")["methods"]["algorithm_1"]["rir"]
    [70.04, 3.28]
    """
    text = files("immunis.paper").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)[experiment]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation (ddof 1) of a few repeats, with the repeats themselves.

    >>> spread([1.0, 3.0])["mean"], round(spread([1.0, 3.0])["std"], 3)
    (2.0, 1.414)
    """
    kept = np.asarray(values, float)
    std = float(kept.std(ddof=1)) if len(kept) > 1 else math.nan
    return {"mean": float(kept.mean()), "std": std, "values": [float(v) for v in kept]}


def judge(said: Mapping[str, Any] | None, ours: Mapping[str, Any]) -> dict[str, str]:
    """Compare a published row, both factors and RIR, with ours under both κ.

    A row *replicates* if all three of ours lie within a factor of three of what was printed,
    under the released κ, with which that was made, and under the honest one; *only with the
    released κ* if they do so under the first alone. The reason gives every figure's ratio, names
    those that are off, and says whether the paper's conclusion (RIR ≫ 1 or not) holds, which is
    another question.

    Args:
        said: the published row, each figure with its deviation; None if there is none.
        ours: by κ (``released``, ``honest``) the mean of each figure.

    >>> printed = {"harmful": [20.0, 1.0], "primary": [0.2, 0.1], "rir": [100.0, 1.0]}
    >>> ours = {"harmful": 24.0, "primary": 0.2, "rir": 120.0}
    >>> judge(printed, {"released": ours, "honest": {**ours, "harmful": 900.0}})["verdict"]
    'replicates only with the released κ'
    """
    if said is None:
        return {"verdict": "–", "reason": "not in the paper"}
    ratios = {
        kind: {factor: ours[kind][factor] / float(said[factor][0]) for factor in FACTORS}
        for kind in KINDS
    }
    off = {
        kind: [name for f, name in FACTORS.items() if not 1 / NEAR <= ratios[kind][f] <= NEAR]
        for kind in KINDS
    }
    verdict = "replicates only with the released κ" if off["honest"] else "replicates"
    if off["released"]:
        verdict = "does not replicate"
    parts = [
        f"{kind} κ: "
        + ", ".join(f"{name} {_times(ratios[kind][factor])}" for factor, name in FACTORS.items())
        + (f" (off: {', '.join(off[kind])})" if off[kind] else "")
        for kind in KINDS
    ]
    conclusion = _side(float(said["rir"][0]))
    agree = [kind for kind in KINDS if _side(ours[kind]["rir"]) == conclusion]
    held = " and ".join(agree) if agree else "neither"
    parts.append(f"“RIR {conclusion}” holds under {held} κ")
    return {"verdict": verdict, "reason": "; ".join(parts)}


def _side(rir: float) -> str:
    return "≫ 1" if rir >= LARGE else "not ≫ 1"


def compare(
    said: Mapping[str, Any] | None, runs: Sequence[Mapping[str, Mapping[str, float]]], tried: int
) -> dict[str, Any]:
    """Mean and spread of both factors and RIR under both κ, with the verdict on them.

    Args:
        said: what the paper printed, if it did.
        runs: ``Pair.ratios`` of every run that did not diverge.
        tried: number of runs made.
    """
    if not runs:
        verdict = "does not replicate" if said else "–"
        return {"diverged": tried, "verdict": verdict, "reason": "every run diverged"}
    found = {
        kind: {factor: spread([run[kind][factor] for run in runs]) for factor in FACTORS}
        for kind in KINDS
    }
    judged = judge(said, means(found))
    judged = with_failures(judged, tried - len(runs), tried, "diverged")
    return {**found, "diverged": tried - len(runs), **judged}


def with_failures(judged: Mapping[str, str], failed: int, tried: int, what: str) -> dict[str, str]:
    """Say in a verdict how many runs failed; a row that lost half of them does not replicate."""
    if not failed:
        return dict(judged)
    verdict = judged["verdict"]
    if verdict != "–" and 2 * failed >= tried:
        verdict = "does not replicate"
    return {"verdict": verdict, "reason": f"{judged['reason']}; {failed} of {tried} runs {what}"}


def means(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """The mean of every figure of a row, by κ."""
    return {kind: {f: found[kind][f]["mean"] for f in FACTORS} for kind in KINDS}


def _times(ratio: float) -> str:
    if not math.isfinite(ratio):
        return "no finite figure"
    if 1 / 1.05 < ratio < 1.05:
        return "the same"
    return f"{number(ratio)} times" if ratio >= 1 else f"1/{number(1 / ratio)}"
