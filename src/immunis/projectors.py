"""Both ends of a spectrum by matrix products alone, for accelerators.

A full decomposition is slow on an accelerator and slower to fetch from a CPU. Here σ₁, or the
smallest eigenvalue that is not zero, comes with the projector on its eigenspace, ties
averaged, from squarings, Cholesky factors and products. On a CPU ``eigh`` is faster. What is
queued on an accelerator is cheap and waiting for it is not, so nothing is looked at before its end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from immunis.errors import InputError
from immunis.scale import carry, square, unit
from immunis.spectrum import relative_cutoff

TURNS, SQUARINGS = 5, 4  # so many turns, of so many squarings each
PURIFICATIONS = 8
CLEAR = 10  # how far above the cut-off the smallest eigenvalue must lie


class End(NamedTuple):
    """The lower end: σ_k, the projector on its eigenspace over its dimension, and the rank k."""

    smallest: Tensor
    bottom: Tensor
    rank: int


def leading_projector(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """σ₁ and the projector on its eigenspace over its dimension.

    For a positive semi-definite S: ``P ← P²/tr(P²)`` from ``P = S`` tends to ``u₁u₁ᵀ``, or its
    average over ties. After j squarings an eigenvalue a share δ below the largest weighs
    ``e^(−2ʲδ)``, so ``‖SP − σ₁P‖ ≤ D·σ₁/(e·2ʲ)`` whatever the gaps.
    """
    s, exponent = unit(square(matrix))
    largest, power = leading(s)
    if not bool(largest > 0):
        raise InputError("the trace is not positive: the matrix is zero, or no Gram matrix.")
    return carry(largest, exponent), power


def leading(s: Tensor) -> tuple[Tensor, Tensor]:
    """``leading_projector`` of a matrix at unit scale; NaN where the trace is not positive."""
    power = _squared(_of_trace_one(s))
    return (s * power).sum(), power


def _of_trace_one(s: Tensor) -> Tensor:
    size = s.diagonal().sum()
    return s / torch.where(size > 0, size, math.nan)


def _squared(power: Tensor, turns: int = TURNS) -> Tensor:
    """Square a matrix of trace one, four times a turn.

    Its largest eigenvalue is at least 1/D, and D⁻¹⁶ is far inside float64.
    """
    for _ in range(turns):
        for _ in range(SQUARINGS):
            power = power @ power
        power = power / power.diagonal().sum()
    return (power + power.mT) / 2


def trailing_projector(matrix: Tensor, share: float | None = None) -> End | None:
    """The smallest eigenvalue above ``share·σ₁``; None where rounding would decide the rank.

    Features that are always zero, or else the null space that ``null_projector`` finds, are lifted
    above σ₁, and what is then smallest leads the inverse. It has to lie ten times above the
    cut-off, which bounds its error as it does that of ``eigh``; else let ``eigh`` decide.
    """
    s, exponent = unit(square(matrix))
    end = trailing(s, relative_cutoff(len(s)) if share is None else share)
    return None if end is None else End(carry(end.smallest, exponent), end.bottom, end.rank)


def trailing(matrix: Tensor, share: float) -> End | None:
    """``trailing_projector`` of a matrix at unit scale."""
    s = _of_trace_one(matrix)
    largest = (s * _squared(s, 1)).sum()  # σ₁ to within a factor D^(1/17)
    null = torch.diag((~s.any(1)).to(s))  # features that are always zero
    found = _lowest(s, null, largest, CLEAR * share)
    if found is None and (purified := null_projector(s, share * largest)) is not None:
        found = _lowest(s, purified, largest, max(CLEAR * share, 20 * share ** (2 / 3)))
    if found is None:
        return None
    bottom, rank = found
    return End((matrix * bottom).sum(), bottom, rank)


def _lowest(s: Tensor, null: Tensor, largest: Tensor, least: float) -> tuple[Tensor, int] | None:
    """Projector on the smallest eigenvalue outside a null space, and the rank; None if unclear.

    A null space that is off by an angle c/σ_k lifts σ_k, too, by (c/σ_k)²·4σ₁. That is little where
    σ_k³ ≫ 4c²σ₁; one given exactly (zero features) does no harm.
    """
    factor, failed = torch.linalg.cholesky_ex(s + 4 * largest * null)
    inverse = _inverse(factor)
    bottom = _squared(inverse / inverse.diagonal().sum())
    clear = (failed == 0) & ((s * bottom).sum() > least * largest)
    is_clear, nullity = torch.stack([clear.to(s), null.diagonal().sum()]).tolist()
    return (bottom, len(s) - round(nullity)) if is_clear else None


def _inverse(factor: Tensor) -> Tensor:
    """``(LLᵀ)⁻¹``; not finite where L is singular."""
    half = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
    return half.mT @ half


def null_projector(s: Tensor, cutoff: Tensor) -> Tensor | None:
    """Projector on the eigenvalues below a cut-off, by purification; None where one is near it.

    ``c(S + cI)⁻¹`` has the eigenvalues ``c/(c+λ)``: near 1 for λ ≪ c, near 0 for λ ≫ c, ½ at c.
    ``N ← 3N² − 2N³`` (McWeeny 1960) drives them to 1 and 0.
    """
    factor, failed = torch.linalg.cholesky_ex(s + cutoff * torch.eye(len(s)).to(s))
    if int(failed):
        return None
    start = found = cutoff * _inverse(factor)
    for _ in range(PURIFICATIONS):
        square = found @ found
        found = 3 * square - 2 * square @ found
    found = (found + found.mT) / 2
    unclear = torch.stack(
        [
            (found @ found - found).norm() * 1e6,  # no projector: an eigenvalue near the cut-off
            (found @ s @ found).norm() / cutoff * 2,  # what is below is not far below
            (start - start @ found).norm(),  # what is above is not far above, or is negative
        ]
    )
    return found if bool((unclear < 1).all()) else None
