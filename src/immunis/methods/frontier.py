"""*Frontier* (ours): the closed-form θ of the largest RIR, or of the largest κ_H alone.

No linear map beats it, or the free directions have no bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from immunis.core.settings import require, require_least
from immunis.methods.base import LinearProblem, Method, Solution
from immunis.theory.frontier import ceilings, damped, frontier

LARGE = 10.0  # how we read "≫" in Definition 3.1 (a)


@dataclass(frozen=True)
class Settings:
    """Where on the Pareto frontier to stand.

    Attributes:
        goal: ``"rir"`` whitens the primary task up to ``budget``. ``"definition"`` maximises κ_H
            while κ_P stays at that of the inputs: Definition 3.1 (a) subject to (b).
        budget: the primary condition number to accept; RIR is the same for every budget.
        floor: how far to shrink free directions, which only the harmful task uses: 1 meets the
            shared ceiling, and RIR grows by 1/floor. It is lowered until RIR is ten where it would
            be below 1, and for ``"definition"`` until κ_H is ten times that of the inputs.
        ridge: share of its mean eigenvalue that is added to each Gram's diagonal first. Every
            direction then counts, and the frontier is that of the ridge ceiling.
    """

    goal: Literal["rir", "definition"] = "rir"
    budget: float = 1.0
    floor: float = 1.0
    ridge: float = 0.0

    def __post_init__(self) -> None:
        require_least(self, 1, "budget")
        require(0 < self.floor <= 1, f"floor={self.floor}: expected 0 < floor <= 1")
        require_least(self, 0, "ridge")
        fixed = self.goal == "definition" and self.budget != 1
        require(not fixed, "the goal 'definition' sets the budget: drop budget, or use 'rir'")


def solve(problem: LinearProblem, settings: Settings) -> Solution:
    """Return the frontier's θ, rotated on the right to lie closest to θ₀ (orthogonal Procrustes).

    κ depends on θθᵀ only, so the rotation is free.
    """
    grams = damped(problem.primary, settings.ridge), damped(problem.harmful, settings.ridge)
    budget, floor = settings.budget, settings.floor
    if settings.goal == "definition":
        budget = grams[0].condition_number
    shared = ceilings(problem.primary, problem.harmful, settings.ridge).shared
    if settings.goal == "definition" or shared < floor:  # below 1 is worse than to do nothing
        floor = min(floor, shared / LARGE)
    theta = frontier(*grams, budget, floor)
    u, _, vh = torch.linalg.svd(theta.T @ problem.theta)
    free = grams[1].free_directions(grams[0])
    return Solution(theta @ u @ vh, {"free_directions": free, "floor": floor})


SUMMARY = (
    "closed form: the largest RIR, or the largest κ_H that Definition 3.1 allows; free directions, "
    "which have no bound, shrink to a floor"
)
DEMO = {"frontier": {}, "frontier, κ_P kept": {"goal": "definition"}}
METHOD = Method("frontier", SUMMARY, Settings, solve, order=5, demo=DEMO)
