"""*Opt κ* (paper, baseline 3): descend on ``κ(H_P) − κ(H_H)`` itself."""

from __future__ import annotations

from torch import Tensor

from immunis.methods.base import Descent, LinearProblem, Method, Solution, descend
from immunis.models.cut import Cut
from immunis.theory.regularizers import (
    feature_hessian,
    hessian_to_theta,
    kappa,
    kappa_gradient,
    linear_hessian,
)
from immunis.training.objective import SUPERVISED, Balanced, Objective


def solve(problem: LinearProblem, settings: Descent) -> Solution:
    """Descend along ``2K_Pθ·∇κ(H_P) − 2K_Hθ·∇κ(H_H)``."""

    def of_one(theta: Tensor, gram: Tensor, rank: int) -> Tensor:
        return hessian_to_theta(theta, gram, kappa_gradient(linear_hessian(theta, gram), rank))

    def gradient(theta: Tensor) -> tuple[Tensor]:
        primary = of_one(theta, problem.k_primary, problem.rank_primary)
        return (primary - of_one(theta, problem.k_harmful, problem.rank_harmful),)

    return descend(problem, settings, gradient).solution()


def objective(settings: Balanced, cut: Cut) -> Objective:
    """Return ``L(D_P) + λ·(κ(H_P) − κ(H_H))``."""
    return Objective(
        lambda view: {
            SUPERVISED: view.supervised,
            "kappa": kappa(feature_hessian(view.primary[""], across=True))
            - kappa(feature_hessian(view.harmful[""], across=True)),
        },
        {"kappa": settings.weight},
        multiples={"kappa": settings.multiple},
        needs={"primary": cut.width},
    )


METHOD = Method(
    "opt_kappa",
    "Opt κ: descend on κ_P − κ_H directly (baseline)",
    Descent,
    solve,
    Balanced,
    objective,
    order=3,
    demo={"Opt κ": {}},
)
