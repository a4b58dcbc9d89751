"""Whiten the features, then descend: with more samples than features no conditioning is left."""

from __future__ import annotations

import torch
from torch import Tensor

from immunis.attacks.base import (
    Arena,
    Attack,
    Features,
    Meter,
    Point,
    Settings,
    whiten_flops,
)
from immunis.attacks.gd_line_search import line_search
from immunis.attacks.probing import least_squares_curve
from immunis.gram import check_squares
from immunis.spectrum import eigh, relative_cutoff


def whitening(z: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Mean and ``(Σ + ridge·tr(Σ)/D·I)^{-1/2}`` on the range of Σ."""
    check_squares(z.double(), "features")
    mean = z.double().mean(0)
    centred = z.double() - mean
    values, vectors = eigh(centred.T @ centred / len(z))
    epsilon = torch.finfo(z.dtype).eps
    keep = values > values[0] * relative_cutoff(len(values), epsilon)
    damped = values[keep] + ridge * values.clamp(min=0).mean()
    return mean, vectors[:, keep] * damped.rsqrt()


def whitened(features: Features, ridge: float) -> Features:
    """Return the problem in coordinates where the features are white."""
    mean, transform = whitening(features.z, ridge)
    return features.map(lambda z: (z.double() - mean) @ transform)


def in_basis(features: Features, basis: str) -> Features:
    """Standardised features, or white ones, in which no direction drowns the others."""
    return whitened(features, 0.0) if basis == "white" else features.standardised()


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Gradient descent with exact line search on whitened features."""
    given = arena.features()
    meter = Meter(arena, spent=whiten_flops(given.samples, given.dimension))
    features = whitened(given, settings["ridge"])
    return least_squares_curve(features, line_search, bias=True, meter=meter)


BASES = ("standardised", "white")

ATTACK = Attack(
    "whiten",
    "full whitening, then gradient descent",
    run,
    lambda arena: {"ridge": (1e-2, 0.0)},
)
