"""What an extractor θ is worth on a task pair: both condition numbers, and what attackers reach.

*Released* is the κ of the paper's code (``reference_condition_number``). *Honest* is σ_max over
the smallest non-zero singular value, with the rank of the inputs, which an invertible θ keeps.
Two attackers are cheap enough for a sweep: the paper's own gradient descent with exact line
search, and ridge regression, which no conditioning can slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from immunis.attacks.contract import Arena, Samples
from immunis.attacks.search import run_attack
from immunis.audits.feature_cache import array_of
from immunis.audits.statistics import last_points, stopped, summarise
from immunis.core.errors import NumericalError
from immunis.models.find_head import cut
from immunis.theory.frontier import ceiling
from immunis.theory.gram import Gram, symmetric
from immunis.theory.measure import RIDGE
from immunis.theory.rir import rir
from immunis.theory.spectrum import eigh, quiet_spectrum, reference_condition_number

KINDS = ("released", "honest")
DESCENT, CLOSED_FORM = ATTACKS = ("gd_line_search", "ridge")


class Side:
    """The Gram matrix K of one task's inputs, with everything its κ needs."""

    def __init__(self, gram: Gram) -> None:
        self.gram, self.spectrum = gram, quiet_spectrum(gram)
        self.released = reference_condition_number(gram.matrix())  # κ as the released code gives it

    @cached_property
    def factor(self) -> Tensor:
        """L with ``K = LLᵀ``, one column for each non-zero eigenvalue."""
        values, vectors = eigh(self.gram.matrix())
        rank = self.spectrum.rank
        return vectors[:, :rank] * values[:rank].sqrt()

    def figures(self) -> dict[str, Any]:
        """Return what a record keeps of the inputs."""
        return {
            "released": self.released,
            "released_tenfold": reference_condition_number(100 * self.gram.matrix()),
            "honest": self.spectrum.condition_number,
            "relative_error": self.spectrum.relative_error,
            "rank": self.spectrum.rank,
            "dimension": self.spectrum.dimension,
            "samples": self.gram.samples,
        }

    def kappas(self, theta: Tensor) -> dict[str, tuple[float, float]]:
        """Return κ(K) and κ(θᵀKθ): released, honest."""
        root = theta.T @ self.factor  # θᵀKθ = root·rootᵀ, and root has twice the digits
        sigma = torch.linalg.svdvals(root)
        if not float(sigma[-1]) > 0:
            raise NumericalError("θ is singular on a task's own directions: κ is infinite.")
        released = self.released, reference_condition_number(symmetric(root @ root.T))
        honest = self.spectrum.condition_number, float(sigma[0] / sigma[-1]) ** 2
        return {"released": released, "honest": honest}


class Pair:
    """A primary and a harmful task."""

    def __init__(self, primary: Gram, harmful: Gram) -> None:
        self.primary, self.harmful = Side(primary), Side(harmful)

    def figures(self) -> dict[str, Any]:
        """Return what a record keeps of the pair: both κ, the ceiling RIR*, free directions."""
        grams = self.primary.gram, self.harmful.gram
        return {
            "primary": self.primary.figures(),
            "harmful": self.harmful.figures(),
            "ceiling": ceiling(*grams),
            "ridge_ceiling": ceiling(*grams, RIDGE),
            "free_directions": self.harmful.spectrum.free_directions(self.primary.spectrum),
        }

    def ratios(self, theta: Tensor) -> dict[str, dict[str, float]]:
        """Return factors (i) and (ii) and RIR of θ against the inputs, by κ (paper, eq. 9)."""
        harmful, primary = self.harmful.kappas(theta), self.primary.kappas(theta)
        found = {}
        for kind in KINDS:
            ratio = rir(primary=primary[kind], harmful=harmful[kind])
            found[kind] = {"harmful": ratio.harmful, "primary": ratio.primary, "rir": ratio.value}
        return found


def attack(theta: Tensor, samples: Samples, budget: int, seed: int) -> dict[str, Any]:
    """Run both attacks on the features ``xᵀθ`` and return their outcomes by name."""
    train, test = (torch.from_numpy(d.inputs).double() for d in (samples.train, samples.test))
    arena = Arena(
        cut(theta, train[:2], name="θ"),
        **vars(samples),
        cache={"": (array_of(train @ theta), array_of(test @ theta))},
        extraction_flops=2.0 * theta.numel(),
        budget=budget,
        seed=seed,
    )
    return {name: run_attack(name, arena, None) for name in ATTACKS}


def paid(
    outcomes: Mapping[Any, Sequence[Mapping[str, Any]]], original: Any, chance: float
) -> dict[Any, dict[str, Any]]:
    """Return for each extractor and attack the test score, its curve and its relative cost.

    Scores and curves are medians over the repeats, with the lowest and the highest. ``outcomes``
    holds the results of ``attack`` by extractor; costs are relative to the ``original`` extractor.
    """
    found: dict[Any, dict[str, Any]] = {name: {} for name in outcomes}
    for which in ATTACKS:
        runs = {name: [run[which] for run in repeats] for name, repeats in outcomes.items()}
        for name, row in summarise(runs, original, "", chance).items():
            if row["status"] != "done":
                found[name][which] = {"status": row["status"], "reason": row["reason"]}
                continue
            scores, curve = row["score"]["values"], []
            for step, points in last_points([stopped(run["curve"]) for run in runs[name]]):
                middle = _middle([point["score"] for point in points])
                curve.append({"steps": step, **{k: round(v, 4) for k, v in middle.items()}})
            found[name][which] = {
                "score": {**_middle(scores), "values": scores},
                "steps": row["cost"]["steps"],
                "multiplier": row["multiplier"]["steps"],
                "curve": curve,
            }
    return found


def _middle(values: Sequence[float]) -> dict[str, float]:
    return {"median": float(np.median(values)), "low": min(values), "high": max(values)}


def reached(attacks: Mapping[str, Any], step: int | None) -> Any:
    """Return what descent reaches at a step, or (None) ridge regression; None where unknown."""
    if step is None:
        return attacks.get(CLOSED_FORM, {}).get("score")
    curve = attacks.get(DESCENT, {}).get("curve", [])
    return next((point for point in curve if point["steps"] == step), None)
