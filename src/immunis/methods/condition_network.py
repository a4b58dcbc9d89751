"""*Condition* on networks (paper, section 5): R_well on primary, R_ill on harmful features."""

from __future__ import annotations

import math
from dataclasses import dataclass

from immunis.core.settings import require
from immunis.models.cut import Cut
from immunis.theory.regularizers import feature_hessian, r_ill, r_well
from immunis.training.objective import SUPERVISED, Objective, Terms, View


@dataclass(frozen=True)
class Settings:
    """λ_P and λ_H: as given, or balanced at the first step and multiplied (paper: 1, 2, 3, 5)."""

    lambda_primary: float | None = None
    lambda_harmful: float | None = None
    multiple_primary: float = 1.0
    multiple_harmful: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("lambda_primary", "lambda_harmful", "multiple_primary", "multiple_harmful"):
            value = getattr(self, name)
            require(value is None or 0 <= value < math.inf, f"{name}={value}: need >= 0")


def objective(settings: Settings, cut: Cut) -> Objective:
    """``L(D_P) + λ_P·R_well(H_P) + λ_H·R_ill(H_H)`` of batch Hessians ``H = ZᵀZ`` (eq. 13)."""

    def terms(view: View) -> Terms:
        return {
            SUPERVISED: view.supervised,
            "r_well": r_well(feature_hessian(view.primary[""], across=True)),
            "r_ill": r_ill(feature_hessian(view.harmful[""], across=True)),
        }

    return Objective(
        terms,
        {"r_well": settings.lambda_primary, "r_ill": settings.lambda_harmful},
        multiples={"r_well": settings.multiple_primary, "r_ill": settings.multiple_harmful},
        needs={"primary": cut.width},
    )
