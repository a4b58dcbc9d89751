"""Start descent where the released last linear map says the answer should be."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from immunis.attacks.contract import (
    Arena,
    Attack,
    Meter,
    NotApplicableError,
    Point,
    Settings,
    solve_flops,
)
from immunis.attacks.probes.shared import least_squares_curve
from immunis.attacks.surgery.drop_last import layers
from immunis.theory.descent import line_search
from immunis.theory.gram import gram_of
from immunis.theory.ridge import ridge_probe


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Fit a probe before the map, carry it through the map's pseudo-inverse, descend from there."""
    before = arena.features(layers(arena.cut)[0])
    meter = Meter(arena, spent=solve_flops(before.samples, before.dimension, before.outputs))
    weights, _ = ridge_probe(gram_of(before.z, before.targets()), settings["ridge"])
    start = torch.linalg.pinv(arena.cut.last_weights()[0].T) @ weights

    def path(hessian: Tensor, cross: Tensor) -> Iterator[Tensor]:
        return line_search(hessian, cross, start)

    return least_squares_curve(arena.features(), path, bias=True, meter=meter)


def space(arena: Arena) -> dict[str, tuple[float, ...]]:
    """Two penalties for the probe that is carried over."""
    if not layers(arena.cut):
        raise NotApplicableError("the features are not the output of a linear layer")
    return {"ridge": (1e-2, 1e-6)}


ATTACK = Attack(
    "pseudo_inverse",
    "warm start from the pseudo-inverse of the last linear map",
    run,
    space,
    lambda cut: ("", *layers(cut)),
)
