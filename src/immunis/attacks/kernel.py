"""Kernel ridge regression with an RBF kernel, by random Fourier features."""

from __future__ import annotations

from torch import Tensor

from immunis.attacks.base import Arena, Attack, Point, Settings, solve_flops
from immunis.attacks.probing import one_point
from immunis.attacks.ridge import ridge_probe
from immunis.attacks.whiten import bases, in_basis
from immunis.gram import gram_of
from immunis.lifting import fourier

WIDTH = 1024


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Ridge on random Fourier features of an RBF kernel with γ = width/D."""
    features, meter = in_basis(arena, settings["basis"])
    gamma = settings["width"] / features.dimension

    def lift(z: Tensor) -> Tensor:
        return fourier(z.float(), WIDTH, gamma, arena.generator())  # the same draws each time

    weights, bias = ridge_probe(gram_of(lift(features.z), features.targets()), settings["ridge"])
    n, d = features.samples, features.dimension
    flops = 2.0 * n * WIDTH * d + solve_flops(n, WIDTH, features.outputs)
    return one_point(features, flops, lambda z: lift(z).double() @ weights + bias, meter)


ATTACK = Attack(
    "kernel",
    "RBF kernel ridge by random features",
    run,
    lambda arena: {
        "width": (0.1, 0.5) if arena.patient else (0.1,),
        "ridge": (1e-2, 1e-4) if arena.patient else (1e-3,),
        "basis": bases(arena),
    },
    closed_form=True,
)
