"""*R_ill only* (paper, baseline 1): make the harmful Hessian ill-conditioned, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from immunis.methods import r_ill_network as network
from immunis.methods.base import Descent, LinearProblem, Method, Solution, descend
from immunis.theory.regularizers import linear_hessian, r_ill_gradient


@dataclass(frozen=True)
class Settings(Descent):
    """Descent on R_ill(H_H(θ)) along the preconditioned gradient of Algorithm 1."""


def solve(problem: LinearProblem, settings: Settings) -> Solution:
    """Descend along ``K_H⁻¹∇_θ R_ill(H_H) = 2θ·∇_H R_ill``."""

    def direction(theta: Tensor) -> Tensor:
        hessian = linear_hessian(theta, problem.k_harmful)
        return 2 * theta @ r_ill_gradient(hessian, problem.rank_harmful)

    return descend(problem, settings, direction)


METHOD = Method(
    "r_ill",
    "R_ill only: raise κ of the harmful task (baseline)",
    Settings,
    solve,
    network.Settings,
    network.objective,
)
