"""*Frontier* (ours): the closed-form θ that no linear method can beat on RIR."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from immunis.guarantees import frontier, whiten
from immunis.methods.base import LinearProblem, Method, Solution, require


@dataclass(frozen=True)
class Settings:
    """Where on the Pareto frontier to stand.

    Attributes:
        budget: the primary condition number to accept; RIR is the same for every budget.
        free_scale: relative scale of directions the primary task does not use.
    """

    budget: float = 1.0
    free_scale: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(1 <= self.budget < math.inf, f"budget={self.budget}: need a finite number >= 1")
        require(0 < self.free_scale < math.inf, f"free_scale={self.free_scale}: need > 0")


def solve(problem: LinearProblem, settings: Settings) -> Solution:
    """Return the frontier's θ, rotated on the right to lie closest to θ₀.

    κ depends on θθᵀ only, so the rotation is free; the nearest one (orthogonal Procrustes)
    keeps the released features as recognisable as they can be.
    """
    epsilon = max(problem.primary.epsilon, problem.harmful.epsilon)
    theta = frontier(
        problem.k_primary, problem.k_harmful, settings.budget, settings.free_scale, epsilon
    )
    u, _, vh = torch.linalg.svd(theta.T @ problem.theta)
    free = whiten(problem.k_primary, problem.k_harmful, epsilon).free
    return Solution(theta @ u @ vh, {"free_directions": free})


METHOD = Method("frontier", "closed-form optimum of RIR for a budget on κ_P", Settings, solve)
