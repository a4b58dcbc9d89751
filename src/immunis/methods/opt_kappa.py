"""*Opt κ* (paper, baseline 3): descend on ``κ(H_P) − κ(H_H)`` itself."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from immunis.methods import opt_kappa_network as network
from immunis.methods.base import Descent, LinearProblem, Method, Solution, descend
from immunis.theory.regularizers import hessian_to_theta, kappa_gradient, linear_hessian


@dataclass(frozen=True)
class Settings(Descent):
    """Descent on κ(H_P(θ)) − κ(H_H(θ)) along its plain gradient."""


def solve(problem: LinearProblem, settings: Settings) -> Solution:
    """Descend along ``2K_Pθ·∇κ(H_P) − 2K_Hθ·∇κ(H_H)``."""

    def gradient(theta: Tensor, gram: Tensor, rank: int) -> Tensor:
        return hessian_to_theta(theta, gram, kappa_gradient(linear_hessian(theta, gram), rank))

    def direction(theta: Tensor) -> Tensor:
        return gradient(theta, problem.k_primary, problem.rank_primary) - gradient(
            theta, problem.k_harmful, problem.rank_harmful
        )

    return descend(problem, settings, direction)


METHOD = Method(
    "opt_kappa",
    "Opt κ: descend on κ_P − κ_H directly (baseline)",
    Settings,
    solve,
    network.Settings,
    network.objective,
)
