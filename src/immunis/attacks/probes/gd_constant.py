"""Linear probing by gradient descent with a constant step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from immunis.attacks.contract import Arena, Attack, Point, Settings
from immunis.attacks.probes.shared import least_squares_curve


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Descend on the squared loss with step ``rate/σ_max(H)``; above 2 it would diverge."""

    def path(hessian: Tensor, cross: Tensor) -> Iterator[Tensor]:
        step = settings["rate"] / max(float(torch.linalg.eigvalsh(hessian)[-1]), 1e-300)
        w = torch.zeros_like(cross)
        while True:
            yield w
            w = w - step * (hessian @ w - cross)

    return least_squares_curve(arena.features(), path, bias=True, products=1)


ATTACK = Attack(
    "gd_constant",
    "gradient descent with a constant step, squared loss",
    run,
    lambda arena: {"rate": (1.0, 1.9, 0.5)},
)
