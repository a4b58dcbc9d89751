"""Linear probing by gradient descent with a constant step."""

from collections.abc import Iterator

import torch
from torch import Tensor

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.learning import least_squares


def run(arena: Arena, settings: Settings) -> Curve:
    """Descend on the squared loss with step ``rate/σ_max(H)``; above 2 it would diverge."""

    def path(hessian: Tensor, cross: Tensor) -> Iterator[Tensor]:
        step = settings["rate"] / max(float(torch.linalg.eigvalsh(hessian)[-1]), 1e-300)
        w = torch.zeros_like(cross)
        while True:
            yield w
            w = w - step * (hessian @ w - cross)

    return least_squares(arena.features(), path, products=1)


ATTACK = Attack(run, {"rate": (1.0, 1.9, 0.5)}, anticipated=True, place=2)
