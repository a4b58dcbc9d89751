"""Kernel ridge regression with an RBF kernel, by random Fourier features."""

from collections.abc import Iterator, Sequence
from functools import partial

from torch import Tensor

from immunis.attacks.contract import Arena, Attack, Settings, Step, if_patient
from immunis.attacks.features import Map, bases, whiten_flops
from immunis.attacks.learning import one_step
from immunis.theory.feature_maps import fourier
from immunis.theory.probes import ridges_of

WIDTH = 1024
RIDGES = tuple(10.0**power for power in range(-8, 3))
LESS = (1.0, 0.01)  # of that damping: the best class needs less of it than squared error does


def together(arena: Arena, choices: Sequence[Settings]) -> Iterator[list[Step]]:
    """Solve ridge on random Fourier features of an RBF kernel with γ = width/D.

    The damping is that of least generalised cross-validation error, times ``damping``. One
    decomposition serves all dampings of a kernel.
    """
    steps: dict[int, Step] = {}
    kernels = dict.fromkeys((settings["basis"], settings["width"]) for settings in choices)
    for basis, width in kernels:
        features = arena.features().in_basis(basis)
        n, d = features.samples, features.dimension
        lift = partial(_lift, arena, width / d)
        found = ridges_of(lift(features.z).double(), features.targets())
        best = found.least_error(RIDGES)
        flops = 2.0 * n * WIDTH * d + whiten_flops(max(n, WIDTH), min(n, WIDTH))
        for place, settings in enumerate(choices):
            if (settings["basis"], settings["width"]) == (basis, width):
                predict = partial(_predict, lift, *found.probe(settings["damping"] * best))
                (steps[place],) = one_step(features, flops, predict)
    yield [steps[place] for place in range(len(choices))]


def _lift(arena: Arena, gamma: float, z: Tensor) -> Tensor:
    return fourier(z.float(), WIDTH, gamma, arena.generator())  # the same draws each time


def _predict(lift: Map, weights: Tensor, bias: Tensor, z: Tensor) -> Tensor:
    return lift(z).double() @ weights + bias


def damping(arena: Arena) -> tuple[float, ...]:
    """Return the shares of the cross-validated damping to search."""
    return LESS if arena.kind == "classification" else (1.0,)


SETTINGS = {"width": if_patient(0.1, 0.5), "damping": damping, "basis": bases}
ATTACK = Attack(settings=SETTINGS, together=together, anticipated=True, closed_form=True, place=13)
