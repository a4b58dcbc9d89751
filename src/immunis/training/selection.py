"""The judge of early stopping: probes of rows that training never saw, and what they cannot tell.

A network may hide the labels of its training rows alone, having learned those by heart. So what
counts is the better of two attackers on held-out rows: one who fits probes on training rows, and
one who has rows of their own (cross-validation among the held-out ones), who may also bring them to
one length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from immunis.data.task import target_matrix
from immunis.theory.feature_maps import even
from immunis.theory.ridge import ridge_path
from immunis.theory.rir import rir
from immunis.theory.scores import score

RIDGES, FOLDS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6), 5
Labelled = tuple[Tensor, Tensor]


def fitted(seen: Labelled, held: Labelled, kind: str, outputs: int) -> float:
    """Score on held-out rows of the best ridge probe that was fitted on seen ones."""
    targets = target_matrix(seen[1], kind, outputs)
    answers = ridge_path(seen[0].double(), targets, held[0].double(), RIDGES)
    return max(score(answer, held[1], kind) for answer in answers)


def crossed(rows: Labelled, kind: str, outputs: int) -> float:
    """Score of the best ridge probe where each row is answered by one that never saw it."""
    z, targets = rows[0].double(), target_matrix(rows[1], kind, outputs)
    answers = [torch.zeros_like(targets) for _ in RIDGES]
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(len(z)))
    folds = min(FOLDS, len(z))
    for fold in range(folds):
        out = order % folds == fold
        found = ridge_path(z[~out], targets[~out], z[out], RIDGES)
        for answer, part in zip(answers, found, strict=True):
            answer[out] = part
    return max(score(answer, rows[1], kind) for answer in answers)


def read_by_probes(seen: Labelled, held: Labelled, kind: str, outputs: int) -> dict[str, Any]:
    """What probes read of held-out rows, and what they would read of rows that were trained on.

    ``probe`` is the judge's figure, ``noise`` one standard error of it where it counts right
    answers (0 where targets are real). ``probe_held`` and ``probe_trained`` compare like with
    like: as many rows of either sort (``compared``), in cross-validation.
    """
    count = min(len(seen[0]), len(held[0]))

    def some(rows: Labelled) -> Labelled:
        drawn = torch.Generator().manual_seed(count)
        chosen = torch.randperm(len(rows[0]), generator=drawn)[:count]
        return rows[0][chosen], rows[1][chosen]

    own = crossed(held, kind, outputs)
    evened = crossed((even(held[0].double()), held[1]), kind, outputs)
    constant = target_matrix(held[1], kind, outputs).mean(0).expand(len(held[0]), -1)
    read = max(own, evened, fitted(seen, held, kind, outputs))
    return {
        "probe": read,
        "noise": math.sqrt(read * (1 - read) / len(held[0])) if kind == "classification" else 0.0,
        "probe_held": own if count == len(held[0]) else crossed(some(held), kind, outputs),
        "probe_trained": crossed(some(seen), kind, outputs),
        "chance": score(constant, held[1], kind),
        "held": len(held[0]),
        "compared": count,
    }


def merit(
    figures: dict[str, Any], history: Sequence[dict[str, Any]], judge: str, tolerance: float
) -> tuple[float, float]:
    """How good an evaluation is beside a run's others, of which the first is the original's.

    The judged figure, −∞ where the held-out primary score is more than ``tolerance`` below the
    original's, and the primary score for ties. Of a probe less than chance is no merit, nor is
    less than one standard error above the lowest found: on few rows the lowest is so by luck. Nor
    is a smaller κ of primary features that lost directions, or a larger one of harmful features
    that gained some: they are of other subspaces.
    """
    start = history[0]

    def lost(row: dict[str, Any]) -> bool:
        return bool(row["primary"] < start["primary"] - tolerance)

    def read(row: dict[str, Any]) -> float:
        return float(max(row["probe"], row["chance"]))

    if judge == "primary":
        return figures["primary"], 0.0
    if lost(figures):
        return -math.inf, 0.0
    if judge == "probe":
        lowest = min([figures, *(r for r in history[1:] if not lost(r))], key=read)
        return -max(read(figures), read(lowest) + lowest["noise"]), figures["primary"]
    primary, harmful = (figures[f"kappa_{role}"] for role in ("primary", "harmful"))
    if figures["rank_primary"] < start["rank_primary"]:
        primary = max(primary, start["kappa_primary"])
    if figures["rank_harmful"] > start["rank_harmful"]:
        harmful = min(harmful, start["kappa_harmful"])
    ratio = rir(
        primary=(start["kappa_primary"], primary), harmful=(start["kappa_harmful"], harmful)
    ).value
    return math.log(ratio) if ratio > 0 else -math.inf, figures["primary"]


def doubts(figures: dict[str, Any], start: dict[str, Any]) -> list[str]:
    """What to know of a verdict on classes: too few rows to tell, or a sample learned by heart."""
    found, chance = [], figures["chance"]

    def noise(rows: int, *shares: float) -> float:
        return math.sqrt(sum(share * (1 - share) for share in shares) / rows)

    def reads(row: dict[str, Any]) -> bool:  # more than chance, by three standard errors
        return bool(row["probe"] - chance > 3 * noise(row["held"], row["probe"], chance))

    before = start["probe"]
    if not reads(start):
        found.append(
            f"before training a probe reads {before:.1%} of the held-out harmful rows, and the "
            f"best constant answer is right in {chance:.1%}: too few rows to judge by. Raise "
            "harmful_held_out (or held_out), or give more harmful data."
        )
    held, trained = figures["probe_held"], figures["probe_trained"]
    once = start["probe_held"], start["probe_trained"]
    gap = held - trained - max(0.0, once[0] - once[1])
    if reads(figures) and gap > 3 * noise(figures["compared"], held, trained, *once):
        found.append(
            f"a ridge probe reads {held:.1%} of harmful rows that were held out and {trained:.1%} "
            "of as many that were trained on: the network has learned those by heart. An "
            "attacker's rows are like the former. Train fewer layers or steps, or give more data."
        )
    return found
