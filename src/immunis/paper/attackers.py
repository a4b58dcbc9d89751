"""What the audit's attackers pay on linear extractors: two of them, cheap enough for a sweep.

Gradient descent with exact line search is the paper's own attacker; ridge regression is the one
that no conditioning can slow. Both are those of the audit, settings searched on the attacker's
own validation rows, and are compared with the same attack on the inputs themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from immunis.attacks.contract import Arena, Data, Samples
from immunis.audits.feature_cache import array_of
from immunis.audits.statistics import stopped, summarise
from immunis.audits.trial import run_attack
from immunis.models.find_head import cut

DESCENT, CLOSED_FORM = ATTACKS = ("gd_line_search", "ridge")
ORIGINAL = "identity"


def attack(theta: Tensor | None, samples: Samples, budget: int, seed: int) -> dict[str, Any]:
    """Run both attacks on the features ``xᵀθ`` (the inputs for None); outcomes by attack."""
    train, test = (torch.from_numpy(d.inputs).double() for d in (samples.train, samples.test))
    theta = torch.eye(train.shape[1], dtype=torch.float64) if theta is None else theta
    cache = {"": (array_of(train @ theta), array_of(test @ theta))}
    model = cut(theta, train[:2], None, None, "θ")
    arena = Arena(
        model, samples.kind, samples.outputs, samples.train, samples.test, cache,
        2.0 * theta.numel(), None, budget, seed, "cpu",
    )  # fmt: skip
    return {name: run_attack(name, arena, None) for name in ATTACKS}


def paid(
    outcomes: Mapping[str, Sequence[Mapping[str, Any]]], chance: float
) -> dict[str, dict[str, Any]]:
    """Compare extractors: by name the test score, its curve and the cost against the inputs.

    Scores and curves are medians over the repeats, with the lowest and the highest.

    Args:
        outcomes: by extractor, one result of ``attack`` per repeat, ``identity`` among them.
        chance: score of the best constant answer.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in outcomes}
    for which in ATTACKS:
        runs = {name: [run[which] for run in repeats] for name, repeats in outcomes.items()}
        for name, row in summarise(runs, ORIGINAL, "", chance).items():
            if row["status"] != "done":
                found[name][which] = {"status": row["status"], "reason": row["reason"]}
                continue
            scores = row["score"]["values"]
            found[name][which] = {
                "score": {**_middle(scores), "values": scores},
                "steps": row["cost"]["steps"],
                "multiplier": row["multiplier"]["steps"],
                "curve": _curve([stopped(run["curve"]) for run in runs[name]]),
            }
    return found


def _middle(values: Sequence[float]) -> dict[str, float]:
    return {"median": float(np.median(values)), "low": min(values), "high": max(values)}


def _curve(curves: Sequence[Sequence[Mapping[str, float]]]) -> list[dict[str, float]]:
    """Median, lowest and highest score at every step at which all repeats have one by then."""
    found = []
    for step in sorted({point["steps"] for curve in curves for point in curve}):
        known = [[point["score"] for point in curve if point["steps"] <= step] for curve in curves]
        if all(known):
            middle = _middle([scores[-1] for scores in known])
            found.append({"steps": step, **{k: round(v, 4) for k, v in middle.items()}})
    return found


def subset(samples: Samples, rows: int, seed: int) -> Samples:
    """The same task with ``rows`` training rows, classes kept in balance, drawn by ``seed``."""
    labels = samples.train.labels
    rng = np.random.default_rng(seed)
    kept = np.concatenate(
        [
            rng.permutation(np.flatnonzero(labels == label))[: rows // samples.outputs]
            for label in range(samples.outputs)
        ]
    )
    kept.sort()
    train = Data(samples.train.inputs[kept], labels[kept])
    return Samples(samples.kind, samples.outputs, train, samples.test)
