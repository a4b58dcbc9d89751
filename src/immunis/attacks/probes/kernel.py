"""Kernel ridge regression with an RBF kernel, by random Fourier features."""

from __future__ import annotations

import math

from torch import Tensor

from immunis.attacks.contract import Arena, Attack, Point, Settings, solve_flops, whiten_flops
from immunis.attacks.preprocess import bases, in_basis
from immunis.attacks.probes.shared import one_point
from immunis.theory.feature_maps import fourier
from immunis.theory.gram import Gram, gram_of
from immunis.theory.ridge import ridge_probe
from immunis.theory.spectrum import eigh

WIDTH = 1024
RIDGES = tuple(10.0**power for power in range(-8, 3))
LESS = (1.0, 0.01)  # of that damping: squared error asks for more of it than the best class does


def cross_validated(gram: Gram) -> float:
    """The relative damping of least generalised cross-validation error, ``RSS/(1 − df/n)²``.

    Golub, Heath and Wahba (1979); all of it from one decomposition of the scatter.
    """
    spread = float(gram.target_scatter.diagonal().sum())
    values, vectors = eigh(gram.scatter)
    values = values.clamp(min=0)
    aims = (vectors.T @ gram.cross_scatter).square().sum(1)
    errors = {}
    for ridge in RIDGES:
        shrink = 1 / (values + ridge * values.mean())
        residual = spread - float((aims * (2 - values * shrink) * shrink).sum())
        free = 1 - (1 + float((values * shrink).sum())) / gram.samples
        errors[ridge] = residual / free**2 if free > 0 else math.inf
    return min(errors, key=lambda ridge: errors[ridge])


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Ridge on random Fourier features of an RBF kernel with γ = width/D.

    The damping is that of least generalised cross-validation error, times ``damping``.
    """
    features, meter = in_basis(arena, settings["basis"])
    gamma = settings["width"] / features.dimension

    def lift(z: Tensor) -> Tensor:
        return fourier(z.float(), WIDTH, gamma, arena.generator())  # the same draws each time

    gram = gram_of(lift(features.z), features.targets())
    weights, bias = ridge_probe(gram, settings["damping"] * cross_validated(gram))
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
