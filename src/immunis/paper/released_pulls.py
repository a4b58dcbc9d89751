"""Gradients of the released regularizers at the features Z of a batch, for many runs at once.

A batch of n rows has a Hessian of rank n. Every gradient therefore follows from the n×n matrices
``ZZᵀ`` and ``XXᵀ``, without a decomposition of a D×D matrix. σ₁ ≥ … ≥ σ_k and a₁, …, a_k are the
non-zero eigenvalues and eigenvectors of ZZᵀ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from immunis.theory.spectrum import REFERENCE_SHIFT, relative_cutoff, squared, trace


def ill_pull(z: Tensor, width: int) -> Tensor:
    """``∂R_ill(ZᵀZ)/∂Z`` with σ_min = 0: ``−(2/K)·R_ill²·ZZᵀZ``, R_ill = 2K/‖ZZᵀ‖²."""
    small = z @ z.mT
    value = 2 * width / small.square().sum((-2, -1), keepdim=True)
    return (-2 / width * value**2) * small @ z


def well_pull(z: Tensor, width: int) -> Tensor:
    """``∂R_well(ZᵀZ)/∂Z`` of σ₁ + 10⁻⁶: ``(2(σ₁ + 10⁻⁶)a₁a₁ᵀ − (2/K)·ZZᵀ)·Z``."""
    small = z @ z.mT
    largest, top = _leading(small)
    return 2 * ((largest + REFERENCE_SHIFT) * top - small / width) @ z


def log_kappa_pull(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return log κ of ZᵀZ as released and its gradient ``2a₁a₁ᵀZ/(σ₁ + 10⁻⁶)``.

    A batch has fewer rows than features, so σ_min is a floor of 10⁻⁶ that does not move.
    """
    largest, top = _leading(z @ z.mT)
    largest = largest + REFERENCE_SHIFT
    return (largest / REFERENCE_SHIFT).log(), 2 / largest * top @ z


def kappa_pull(z: Tensor) -> Tensor:
    """``∂κ(ZᵀZ)/∂Z = 2(a₁a₁ᵀ/σ_k − (σ₁/σ_k²)·a_k a_kᵀ)·Z``."""
    values, vectors = _eigh(z @ z.mT)
    zero = values <= values[:, -1:] * relative_cutoff(z.shape[-1])
    index = zero.sum(1, keepdim=True).clamp(max=values.shape[1] - 1)
    smallest = values.gather(1, index)[..., None]
    last = vectors.gather(2, index[:, None].expand_as(vectors[..., :1]))
    first = vectors[..., -1:]
    low = values[:, -1:, None] / smallest**2 * last @ last.mT
    return 2 * (first @ first.mT / smallest - low) @ z


def _leading(small: Tensor) -> tuple[Tensor, Tensor]:
    """Return σ₁ (R×1×1) and a₁a₁ᵀ of each matrix, the way that is faster where it lies."""
    return leading_by_squaring(small) if small.is_cuda else leading_by_eigh(small)


def leading_by_squaring(small: Tensor) -> tuple[Tensor, Tensor]:
    """Return σ₁ and a₁a₁ᵀ from matrix products alone."""
    top = squared(small / trace(small), turns=10)
    return (small * top).sum((1, 2), keepdim=True), top


def leading_by_eigh(small: Tensor) -> tuple[Tensor, Tensor]:
    """Return σ₁ and a₁a₁ᵀ from a decomposition."""
    values, vectors = _eigh(small)
    first = vectors[..., -1:]
    return values[:, -1:, None], first @ first.mT


def _eigh(small: Tensor) -> tuple[Tensor, Tensor]:
    """Decompose on the CPU; use zeros for numbers that are not finite."""
    values, vectors = torch.linalg.eigh(small.nan_to_num(0, 0, 0).cpu())
    return values.to(small), vectors.to(small)


def printed_inverse(pull: Tensor, x: Tensor, ridge: float) -> Tensor:
    """``(XᵀX + λI)⁻¹`` on the outputs of each row of ``pull``, by an n×n solve.

    ``(G − G·Xᵀ(XXᵀ + λI)⁻¹X)/λ``: the weight's gradient ``Gᵀ X`` multiplied from the left.
    """
    small = x @ x.mT
    small.diagonal(dim1=-2, dim2=-1).add_(ridge)
    return (pull - torch.linalg.solve(small, x @ pull.mT).mT @ x) / ridge
