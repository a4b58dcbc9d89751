"""Both ends of a spectrum by matrix products alone, for accelerators.

A full decomposition is slow on an accelerator. Squarings, Cholesky factors and products give σ₁,
or the smallest eigenvalue that is not zero, with the projector on its eigenspace, ties averaged.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from immunis.core.errors import InputError
from immunis.theory.scale import square
from immunis.theory.spectrum import relative_cutoff

TURNS, SQUARINGS = 5, 4  # at most so many turns, of so many squarings each
PURIFICATIONS = 8
CLEAR = 10  # how far above the cut-off the smallest eigenvalue must lie


class End(NamedTuple):
    """The lower end: σ_k, the projector on its eigenspace over its dimension, and the rank k."""

    smallest: Tensor
    bottom: Tensor
    rank: int


def leading_projector(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return σ₁ of a Gram matrix, and the projector on its eigenspace over its dimension.

    ``P ← P²/tr(P²)`` from ``P = S`` tends to ``u₁u₁ᵀ``, or its average over ties. After j squarings
    an eigenvalue a share δ below the largest weighs ``e^(−2ʲδ)``: ``‖SP − σ₁P‖ ≤ D·σ₁/(e·2ʲ)``.
    """
    s = square(matrix).detach().to(torch.float64)
    size = s.diagonal().sum()
    if not bool(size > 0):
        raise InputError("the trace is not positive: the matrix is zero, or no Gram matrix.")
    power = _squared(s / size)
    return (s * power).sum(), power


def _squared(power: Tensor, turns: int = TURNS) -> Tensor:
    """Square a matrix of trace one until it stays, four times a turn."""
    for _ in range(turns):  # the largest eigenvalue is at least 1/D, and D⁻¹⁶ fits float64
        before = power
        for _ in range(SQUARINGS):
            power = power @ power
        power = power / power.diagonal().sum()
        if bool((power - before).abs().max() <= 1e-15):
            break
    return (power + power.mT) / 2


def trailing_projector(matrix: Tensor, share: float | None = None) -> End | None:
    """Return the smallest eigenvalue above ``share·σ₁``; None where rounding would decide the rank.

    Features that are always zero, or else the null space that ``null_projector`` finds, are lifted
    above σ₁, and what is then smallest leads the inverse. It must lie ten times above the cut-off,
    which bounds its error; else ``eigh`` has to decide.
    """
    s = square(matrix).detach().to(torch.float64)
    size = s.diagonal().sum()
    if not bool(size > 0):
        return None
    s, share = s / size, relative_cutoff(len(s)) if share is None else share
    largest = (s * _squared(s, 1)).sum()  # σ₁ to within a factor D^(1/17)
    null = torch.diag((~s.any(1)).to(s))  # features that are always zero
    found = _lowest(s, null, largest, CLEAR * share)
    if found is None and (purified := null_projector(s, share * largest)) is not None:
        found = _lowest(s, purified, largest, max(CLEAR * share, 20 * share ** (2 / 3)))
    return None if found is None else found._replace(smallest=found.smallest * size)


def _lowest(s: Tensor, null: Tensor, largest: Tensor, least: float) -> End | None:
    """Return the lower end outside a null space; None below the least.

    A null space that is off by an angle c/σ_k lifts σ_k, too, by (c/σ_k)²·4σ₁. That is little where
    σ_k³ ≫ 4c²σ₁; one given exactly (zero features) does no harm.
    """
    factor, failed = torch.linalg.cholesky_ex(s + 4 * largest * null)
    if int(failed):
        return None
    inverse = torch.cholesky_inverse(factor)
    bottom = _squared(inverse / inverse.diagonal().sum())
    smallest = (s * bottom).sum()
    if not bool(smallest > least * largest):
        return None
    return End(smallest, bottom, len(s) - round(float(null.diagonal().sum())))


def null_projector(s: Tensor, cutoff: Tensor) -> Tensor | None:
    """Return the projector on eigenvalues below a cut-off, by purification; None if one is near it.

    ``c(S + cI)⁻¹`` has the eigenvalues ``c/(c+λ)``: near 1 for λ ≪ c, near 0 for λ ≫ c, ½ at c.
    ``N ← 3N² − 2N³`` (McWeeny 1960) drives them to 1 and 0.
    """
    factor, failed = torch.linalg.cholesky_ex(s + cutoff * torch.eye(len(s)).to(s))
    if int(failed):
        return None
    start = found = cutoff * torch.cholesky_inverse(factor)
    for _ in range(PURIFICATIONS):
        square = found @ found
        found = 3 * square - 2 * square @ found
    found = (found + found.mT) / 2
    near = (found @ found - found).norm() * 1e6  # no projector: an eigenvalue near the cut-off
    high = (found @ s @ found).norm() / cutoff * 2  # what is below is not far below
    low = (start - start @ found).norm()  # what is above is not far above, or is negative
    return found if bool((torch.stack([near, high, low]) < 1).all()) else None
