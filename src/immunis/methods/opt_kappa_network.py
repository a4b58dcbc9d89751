"""*Opt κ* on networks (paper, baseline 3): descend on ``κ(H_P) − κ(H_H)`` itself."""

from __future__ import annotations

from immunis.models.cut import Cut
from immunis.theory.regularizers import feature_hessian, kappa
from immunis.training.objective import SUPERVISED, Balanced, Objective

Settings = Balanced


def objective(settings: Balanced, cut: Cut) -> Objective:
    """``L(D_P) + λ·(κ(H_P) − κ(H_H))``."""
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
