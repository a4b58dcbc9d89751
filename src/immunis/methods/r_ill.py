"""*R_ill only* (paper, baseline 1): make the harmful Hessian ill-conditioned, nothing else."""

from __future__ import annotations

from torch import Tensor

from immunis.methods.base import Descent, LinearProblem, Method, Solution, best_of, descent
from immunis.models.cut import Cut
from immunis.theory.regularizers import feature_hessian, linear_hessian, r_ill, r_ill_gradient
from immunis.training.objective import Balanced, Objective


def solve(problem: LinearProblem, settings: Descent) -> Solution:
    """Descend along ``K_H⁻¹∇_θ R_ill(H_H) = 2θ·∇_H R_ill``, as Algorithm 1 does."""
    _, harmful = problem.moments

    def gradient(theta: Tensor) -> tuple[Tensor]:
        return (2 * theta @ r_ill_gradient(linear_hessian(theta, harmful.k), harmful.rank),)

    return best_of(problem, descent(problem, settings, gradient))


def objective(settings: Balanced, cut: Cut) -> Objective:
    """Return ``L(D_P) + λ·R_ill(H_H)``; the supervised loss keeps the primary task."""
    return settings.objective(
        "r_ill", lambda view: r_ill(feature_hessian(view.harmful[""], across=True))
    )


SUMMARY = "R_ill only: raise κ of the harmful task (baseline)"
METHOD = Method(
    "r_ill", SUMMARY, Descent, solve, Balanced, objective, order=1, demo={"R_ill only": {}}
)
