"""What the paper printed, and whether we found the same."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from immunis.tables import number

NEAR = 3.0  # a figure replicates if it lies within this factor of the published one
LARGE = 10.0  # "RIR ≫ 1": the paper gives no number; we take one order of magnitude


@cache
def published(experiment: str) -> dict[str, Any]:
    """Return the paper's figures for ``house-prices`` or ``mnist``, with their sources.

    >>> published("mnist")["methods"]["algorithm_1"]["rir"]
    [70.04, 3.28]
    """
    text = files("immunis.reproduce").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)[experiment]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation (ddof 1) of a few repeats, with the repeats themselves.

    >>> spread([1.0, 3.0])["mean"], round(spread([1.0, 3.0])["std"], 3)
    (2.0, 1.414)
    """
    kept = np.asarray(values, float)
    std = float(kept.std(ddof=1)) if len(kept) > 1 else math.nan
    return {"mean": float(kept.mean()), "std": std, "values": [float(v) for v in kept]}


def judge(said: Mapping[str, Any] | None, released: float, honest: float) -> dict[str, str]:
    """Compare a published RIR with ours under both κ.

    A figure *replicates* if ours lies within a factor of three of it under the released κ, with
    which it was made, and under the honest one; *only with the released κ* if the first alone
    holds. The reason also says whether the paper's conclusion (RIR ≫ 1 or not) holds, which is
    another question.

    >>> judge({"rir": [100.0, 1.0]}, 120.0, 2.0)["verdict"]
    'replicates only with the released κ'
    """
    if said is None:
        return {"verdict": "–", "reason": "not in the paper"}
    value = float(said["rir"][0])

    def near(ours: float) -> bool:
        return value / NEAR <= ours <= value * NEAR

    def side(ours: float) -> str:
        return "≫ 1" if ours >= LARGE else "not ≫ 1"

    if not near(released):
        verdict = "does not replicate"
    else:
        verdict = "replicates" if near(honest) else "replicates only with the released κ"
    ours = {"released": released, "honest": honest}
    parts = [f"{name} κ gives {_times(figure / value)}" for name, figure in ours.items()]
    agree = [name for name, figure in ours.items() if side(figure) == side(value)]
    held = " and ".join(agree) if agree else "neither"
    parts.append(f"“RIR {side(value)}” holds under {held} κ")
    return {"verdict": verdict, "reason": "; ".join(parts)}


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
        kind: {
            key: spread([run[kind][key] for run in runs]) for key in ("harmful", "primary", "rir")
        }
        for kind in ("released", "honest")
    }
    judged = judge(said, *(found[kind]["rir"]["mean"] for kind in ("released", "honest")))
    if tried > len(runs):
        judged["reason"] += f"; {tried - len(runs)} of {tried} runs diverged"
    return {**found, "diverged": tried - len(runs), **judged}


def _times(ratio: float) -> str:
    if not math.isfinite(ratio):
        return "no finite figure"
    if 1 / 1.05 < ratio < 1.05:
        return "the same"
    return f"{number(ratio)} times it" if ratio >= 1 else f"1/{number(1 / ratio)} of it"
