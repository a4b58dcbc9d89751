"""Linear probing in closed form: ridge regression, which no conditioning can slow."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from immunis.attacks.contract import Arena, Attack, Searched, Settings, Step
from immunis.attacks.features import LENGTHS, solve_flops
from immunis.attacks.learning import one_step
from immunis.theory.gram import gram_of
from immunis.theory.probes import ridge_probe


def together(arena: Arena, choices: Sequence[Settings]) -> list[list[Step]]:
    """Solve the normal equations once for each penalty; all share the moments of their basis."""
    bases = {settings["basis"]: arena.features() for settings in choices}
    bases = {basis: features.in_basis(basis) for basis, features in bases.items()}
    grams = {basis: gram_of(each.z, each.targets()) for basis, each in bases.items()}
    steps = []
    for settings in choices:
        features, gram = bases[settings["basis"]], grams[settings["basis"]]
        flops = solve_flops(features.samples, features.dimension, features.outputs)
        predict = partial(_predict, *ridge_probe(gram, settings["ridge"]))
        steps += one_step(features, flops, predict)
    return [steps]


def _predict(weights: Tensor, bias: Tensor, z: Tensor) -> Tensor:
    return z.double() @ weights + bias


SETTINGS: Searched = {"ridge": (1e-2, 1.0, 1e-4, 1e-6, 1e-9, 1e-12), "basis": LENGTHS}
ATTACK = Attack(
    settings=SETTINGS, together=together, anticipated=True, closed_form=True, preset="quick",
    place=6, telling=1,
)  # fmt: skip
