"""*IMMA* on networks (paper, baseline 2; Zheng et al. 2024): bi-level, through the attacker.

Lower level: the attacker descends on ``L(D_H, w, θ)`` to reach θ*. Upper level: θ raises
``L(D_H, w, θ*)`` and keeps ``L(D_P, ω, θ)`` low. The harmful head w follows the features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from immunis.core.settings import require
from immunis.models.cut import Cut
from immunis.training.objective import SUPERVISED, Attacker, Balanced, Objective


@dataclass(frozen=True)
class Settings(Balanced):
    """The upper level's weight, and the attacker's steps.

    Attributes:
        steps: of the attacker, each of ``rate`` times the size of the parameters.
        rate: see ``steps``.
        order: 1 takes the upper gradient at θ* alone; 2 carries it back through the steps.
    """

    steps: int = 1
    rate: float = 0.001
    order: Literal[1, 2] = 2

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        require(self.steps >= 1, f"steps={self.steps}: need >= 1")
        require(0 < self.rate < math.inf, f"rate={self.rate}: need > 0")


def objective(settings: Settings, cut: Cut) -> Objective:
    """``L(D_P) − λ·L(D_H, w, θ*)``."""
    return Objective(
        lambda view: {SUPERVISED: view.supervised},
        {"attacked": settings.weight},
        after=lambda view: {"attacked": -view.harmful_loss},
        attacker=Attacker(
            lambda view: view.harmful_loss, settings.steps, settings.rate, settings.order
        ),
        multiples={"attacked": settings.multiple},
        head=True,
    )
