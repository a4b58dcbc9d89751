"""Kernel ridge regression with an RBF kernel, by random Fourier features."""

from __future__ import annotations

from torch import Tensor

from immunis.attacks.contract import Arena, Attack, Point, Settings, solve_flops, whiten_flops
from immunis.attacks.preprocess import bases, in_basis
from immunis.attacks.probes.shared import one_point
from immunis.theory.feature_maps import fourier
from immunis.theory.gram import gram_of
from immunis.theory.ridge import cross_validated_ridge, ridge_probe

WIDTH = 1024
RIDGES = tuple(10.0**power for power in range(-8, 3))
LESS = (1.0, 0.01)  # of that damping: squared error asks for more of it than the best class does


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Ridge on random Fourier features of an RBF kernel with γ = width/D.

    The damping is that of least generalised cross-validation error, times ``damping``.
    """
    features, meter = in_basis(arena, settings["basis"])
    gamma = settings["width"] / features.dimension

    def lift(z: Tensor) -> Tensor:
        return fourier(z.float(), WIDTH, gamma, arena.generator())  # the same draws each time

    gram = gram_of(lift(features.z), features.targets())
    weights, bias = ridge_probe(gram, settings["damping"] * cross_validated_ridge(gram, RIDGES))
    n, d = features.samples, features.dimension
    flops = 2.0 * n * WIDTH * d + whiten_flops(n, WIDTH) + solve_flops(n, WIDTH, features.outputs)
    return one_point(features, flops, lambda z: lift(z).double() @ weights + bias, meter)


ATTACK = Attack(
    "kernel",
    "RBF kernel ridge by random features",
    run,
    lambda arena: {
        "width": (0.1, 0.5) if arena.patient else (0.1,),
        "damping": LESS if arena.kind == "classification" else (1.0,),
        "basis": bases(arena),
    },
    closed_form=True,
)
