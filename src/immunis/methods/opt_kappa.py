"""*Opt κ* (paper, baseline 3): descend on ``κ(H_P) − κ(H_H)`` itself."""

from __future__ import annotations

from torch import Tensor

from immunis.methods.base import Descent, LinearProblem, Method, Solution, best_of, descent
from immunis.models.cut import Cut
from immunis.theory import regularizers as reg
from immunis.training.objective import Balanced, Objective


def solve(problem: LinearProblem, settings: Descent) -> Solution:
    """Descend along ``2K_Pθ·∇κ(H_P) − 2K_Hθ·∇κ(H_H)``."""

    def gradient(theta: Tensor) -> tuple[Tensor]:
        primary, harmful = (
            reg.hessian_to_theta(
                theta, m.k, reg.kappa_gradient(reg.linear_hessian(theta, m.k), m.rank)
            )
            for m in problem.moments
        )
        return (primary - harmful,)

    return best_of(problem, descent(problem, settings, gradient))


def objective(settings: Balanced, cut: Cut) -> Objective:
    """Return ``L(D_P) + λ·(κ(H_P) − κ(H_H))``."""

    def kappa(features: Tensor) -> Tensor:
        return reg.kappa(reg.feature_hessian(features, across=True))

    return settings.objective(
        "kappa",
        lambda view: kappa(view.primary[""]) - kappa(view.harmful[""]),
        needs={"primary": cut.width},
    )


SUMMARY = "Opt κ: descend on κ_P − κ_H directly (baseline)"
METHOD = Method(
    "opt_kappa", SUMMARY, Descent, solve, Balanced, objective, order=3, demo={"Opt κ": {}}
)
