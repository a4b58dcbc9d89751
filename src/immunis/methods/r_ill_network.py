"""*R_ill only* on networks (paper, baseline 1), with the supervised loss that keeps the task."""

from __future__ import annotations

from immunis.models.cut import Cut
from immunis.theory.regularizers import feature_hessian, r_ill
from immunis.training.objective import SUPERVISED, Balanced, Objective

Settings = Balanced


def objective(settings: Balanced, cut: Cut) -> Objective:
    """``L(D_P) + λ·R_ill(H_H)``."""
    return Objective(
        lambda view: {
            SUPERVISED: view.supervised,
            "r_ill": r_ill(feature_hessian(view.harmful[""], across=True)),
        },
        {"r_ill": settings.weight},
        multiples={"r_ill": settings.multiple},
    )
