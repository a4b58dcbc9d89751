"""Linear probing in closed form: ridge regression, which no conditioning can slow."""

from __future__ import annotations

from immunis.attacks.contract import Arena, Attack, Point, Settings, solve_flops
from immunis.attacks.preprocess import in_basis, lengths
from immunis.attacks.probes.shared import one_point
from immunis.theory.gram import gram_of
from immunis.theory.ridge import ridge_probe


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Solve the normal equations once."""
    features, meter = in_basis(arena, settings["basis"])
    weights, bias = ridge_probe(gram_of(features.z, features.targets()), settings["ridge"])
    flops = solve_flops(features.samples, features.dimension, features.outputs)
    return one_point(features, flops, lambda z: z.double() @ weights + bias, meter)


ATTACK = Attack(
    "ridge",
    "ridge regression in closed form",
    run,
    lambda arena: {"ridge": (1e-2, 1.0, 1e-4, 1e-6, 1e-9, 1e-12), "basis": lengths(arena)},
    closed_form=True,
)
