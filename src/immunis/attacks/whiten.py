"""Whiten the features, then descend: with more samples than features no conditioning is left."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

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
UNEVEN = 3  # long rows over the median one, from which on a few decide what a scale is


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
    """How to look at features: standardised, white, or in rows of one length (``unit``).

    White ones where they differ and samples suffice to tell; rows of one length where some are
    much longer than most, as where a defence has drawn most of them together.
    """
    features = arena.features()
    found, z = ["standardised"], features.standardised().z.double()
    if _enough(features):
        values = torch.linalg.eigvalsh(z.T @ z / len(z))
        if bool(values[-1] > UNEQUAL * values[0]):
            found.append("white")
    size = z.norm(dim=1)
    if bool(size.quantile(0.99) > UNEVEN * size.median()):
        found.append("unit")
    return tuple(found)


def _enough(features: Features) -> bool:
    return features.samples >= SAMPLES * features.dimension


def in_basis(arena: Arena, basis: str) -> tuple[Features, Meter]:
    """Features in a basis of ``bases``.

    In white ones no direction drowns the others. Rows are brought to one length from the median
    of each feature, so that no row drowns the others, made white or standardised, and brought to
    one length again.
    """
    given = arena.features()
    if basis != "unit":
        return _spread(arena, given, basis == "white")
    middle = given.z.median(0).values
    found, meter = _spread(arena, given.map(lambda z: _unit(z - middle)), _enough(given))
    return found.map(lambda z: math.sqrt(found.dimension) * _unit(z)), meter


def _spread(arena: Arena, given: Features, white: bool) -> tuple[Features, Meter]:
    if white:
        spent = whiten_flops(given.samples, given.dimension)
        return whitened(given, 0.0), Meter(arena, spent=spent)
    return given.standardised(), Meter(arena)


def _unit(z: Tensor) -> Tensor:
    return functional.normalize(z, dim=1, eps=0.0).nan_to_num()


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
