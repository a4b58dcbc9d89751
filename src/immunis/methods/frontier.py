"""*Frontier* (ours): the closed-form θ that no linear method can beat on RIR."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from immunis.core.settings import require_least
from immunis.methods.base import LinearProblem, Method, Solution
from immunis.theory.frontier import damped, frontier


@dataclass(frozen=True)
class Settings:
    """Where on the Pareto frontier to stand.

    Attributes:
        budget: the primary condition number to accept; RIR is the same for every budget.
        free_scale: relative scale of directions the primary task does not use.
        ridge: share of its mean eigenvalue that is added to each Gram's diagonal first. Every
            direction then counts, and the frontier is that of the ridge ceiling.
    """

    budget: float = 1.0
    free_scale: float = 1.0
    ridge: float = 0.0

    def __post_init__(self) -> None:
        require_least(self, 1, "budget")
        require_least(self, 0, "free_scale", above=True)
        require_least(self, 0, "ridge")


def solve(problem: LinearProblem, settings: Settings) -> Solution:
    """Return the frontier's θ, rotated on the right to lie closest to θ₀ (orthogonal Procrustes).

    κ depends on θθᵀ only, so the rotation is free.
    """
    grams = damped(problem.primary, settings.ridge), damped(problem.harmful, settings.ridge)
    theta = frontier(*grams, settings.budget, settings.free_scale)
    u, _, vh = torch.linalg.svd(theta.T @ problem.theta)
    return Solution(theta @ u @ vh, {"free_directions": grams[1].free_directions(grams[0])})


METHOD = Method(
    "frontier", "closed-form optimum of RIR for a budget on κ_P", Settings, solve, order=5
)
