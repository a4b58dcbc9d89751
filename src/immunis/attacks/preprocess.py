"""How an attacker looks at features before a probe: as given, standardised, white, of one length.

Where one direction drowns the others only white features show those, and where a few rows are
much longer than most only rows of one length do. Which serves best is a setting like any other.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from immunis.attacks.contract import Arena, Features, Meter, whiten_flops
from immunis.theory.feature_maps import unit_rows
from immunis.theory.scale import check_size
from immunis.theory.spectrum import eigh, relative_cutoff

SAMPLES = 4  # to each feature, from which on whitening shows more than noise
UNEQUAL = 100  # condition number of standardised features above which whitening changes much
UNEVEN = 3  # longest row over the median one, from which on a few decide what a scale is


def bases(arena: Arena) -> tuple[str, ...]:
    """For probes that need a scale: standardised features, white ones, rows of one length.

    White ones where they differ and samples suffice to tell, the last as in ``lengths``.
    """
    features = arena.features()
    found: tuple[str, ...] = ("standardised",)
    if _enough(features):
        z = features.standardised().z.double()
        values = torch.linalg.eigvalsh(z.T @ z / len(z))
        if bool(values[-1] > UNEQUAL * values[0]):
            found += ("white",)
    return found + lengths(arena)[1:]


def lengths(arena: Arena) -> tuple[str, ...]:
    """For probes that need none: features as given; rows of one length where they differ much.

    That is where a defence has drawn most rows together, and a few not.
    """
    features = arena.features()
    z = features.scaled().z.double()
    size = (z - z.median(0).values).norm(dim=1)
    return ("given", "unit") if bool(size.max() > UNEVEN * size.median()) else ("given",)


def in_basis(arena: Arena, basis: str) -> tuple[Features, Meter]:
    """Features in one of the bases, and a meter that has counted the way there.

    Rows are brought to one length from the median of each feature, made white or standardised,
    and brought to one length again, √D.
    """
    given = arena.features()
    if basis == "given":
        return given, Meter(arena)
    if basis != "unit":
        return _spread(arena, given, basis == "white")
    given = given.scaled()
    middle = given.z.double().median(0).values
    found, meter = _spread(arena, given.map(lambda z: unit_rows(z - middle)), _enough(given))
    return found.map(lambda z: math.sqrt(found.dimension) * unit_rows(z)), meter


def whitening(z: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Mean and ``(Σ + ridge·tr(Σ)/D·I)^{-1/2}`` on the range of Σ."""
    check_size(z.double(), "features")
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


def _enough(features: Features) -> bool:
    return features.samples >= SAMPLES * features.dimension


def _spread(arena: Arena, given: Features, white: bool) -> tuple[Features, Meter]:
    if white:
        spent = whiten_flops(given.samples, given.dimension)
        return whitened(given, 0.0), Meter(arena, spent=spent)
    return given.standardised(), Meter(arena)
