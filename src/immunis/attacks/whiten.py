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

SAMPLES = 4  # to each feature, from which on whitening shows more than noise
UNEQUAL = 100  # condition number of standardised features above which whitening changes much


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


def bases(arena: Arena) -> tuple[str, ...]:
    """White features beside standardised ones, where those differ and samples suffice to tell."""
    features = arena.features()
    if features.samples >= SAMPLES * features.dimension:
        z = features.standardised().z.double()
        values = torch.linalg.eigvalsh(z.T @ z / len(z))
        if bool(values[-1] > UNEQUAL * values[0]):
            return ("standardised", "white")
    return ("standardised",)


def in_basis(arena: Arena, basis: str) -> tuple[Features, Meter]:
    """Standardised features, or white ones, in which no direction drowns the others."""
    given = arena.features()
    if basis == "white":
        spent = whiten_flops(given.samples, given.dimension)
        return whitened(given, 0.0), Meter(arena, spent=spent)
    return given.standardised(), Meter(arena)


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Gradient descent with exact line search on whitened features."""
    given = arena.features()
    meter = Meter(arena, spent=whiten_flops(given.samples, given.dimension))
    features = whitened(given, settings["ridge"])
    return least_squares_curve(features, line_search, bias=True, meter=meter)


ATTACK = Attack(
    "whiten",
    "full whitening, then gradient descent",
    run,
    lambda arena: {"ridge": (1e-2, 0.0)},
)
