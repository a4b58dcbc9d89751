"""Kernel ridge regression with an RBF kernel, by random Fourier features."""

from torch import Tensor

from immunis.attacks.contract import Arena, Attack, Curve, Settings, if_patient
from immunis.attacks.curves import one_step
from immunis.attacks.features import bases
from immunis.attacks.meter import solve_flops, whiten_flops
from immunis.theory.feature_maps import fourier
from immunis.theory.gram import gram_of
from immunis.theory.ridge import cross_validated_ridge, ridge_probe

WIDTH = 1024
RIDGES = tuple(10.0**power for power in range(-8, 3))
LESS = (1.0, 0.01)  # of that damping: the best class needs less of it than squared error does


def run(arena: Arena, settings: Settings) -> Curve:
    """Solve ridge on random Fourier features of an RBF kernel with γ = width/D.

    The damping is that of least generalised cross-validation error, times ``damping``.
    """
    features = arena.features().in_basis(settings["basis"])
    n, d = features.samples, features.dimension

    def lift(z: Tensor) -> Tensor:  # the same draws each time
        return fourier(z.float(), WIDTH, settings["width"] / d, arena.generator())

    gram = gram_of(lift(features.z), features.targets())
    weights, bias = ridge_probe(gram, settings["damping"] * cross_validated_ridge(gram, RIDGES))
    flops = 2.0 * n * WIDTH * d + whiten_flops(n, WIDTH) + solve_flops(n, WIDTH, features.outputs)
    return one_step(features, flops, lambda z: lift(z).double() @ weights + bias)


def damping(arena: Arena) -> tuple[float, ...]:
    """Return the shares of the cross-validated damping to search."""
    return LESS if arena.kind == "classification" else (1.0,)


SETTINGS = {"width": if_patient(0.1, 0.5), "damping": damping, "basis": bases}
ATTACK = Attack(run, SETTINGS, closed_form=True, place=13)
