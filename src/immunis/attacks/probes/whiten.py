"""Whiten the features, then descend: with more samples than features no conditioning is left."""

from __future__ import annotations

from immunis.attacks.contract import Arena, Attack, Meter, Point, Settings, whiten_flops
from immunis.attacks.preprocess import whitened
from immunis.attacks.probes.shared import least_squares_curve
from immunis.theory.descent import line_search


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Gradient descent with exact line search on whitened features."""
    given = arena.features()
    meter = Meter(arena, spent=whiten_flops(given.samples, given.dimension))
    features = whitened(given, settings["ridge"])
    return least_squares_curve(features, line_search, bias=True, meter=meter)


ATTACK = Attack(
    "whiten", "full whitening, then gradient descent", run, lambda arena: {"ridge": (1e-2, 0.0)}
)
