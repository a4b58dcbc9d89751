"""R_well, R_ill and κ: values, exact gradients, and losses that autograd can use.

All compute in float64 and answer in the dtype of their input. For a linear extractor apply them to
``linear_hessian(θ, K)``, for a batch of features to ``feature_hessian(Z)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from immunis.core.distributed import summed_with_gradient, world
from immunis.core.errors import InputError, NumericalError
from immunis.data.checks import LARGEST_MATRIX, check_size, in_dtype, power_of_two, real
from immunis.theory.gram import symmetric
from immunis.theory.spectrum import End, leading_projector, relative_cutoff, trailing_projector

Pair = tuple[Tensor, Tensor]  # value and gradient


def linear_hessian(theta: Tensor, gram: Tensor) -> Tensor:
    """Return ``H(θ) = θᵀKθ``, the Hessian of ℓ2 probing on ``xᵀθ`` (paper, eq. 6)."""
    theta = real(theta)
    return symmetric(_product(theta.mT, real(gram), theta))


def feature_hessian(features: Tensor, *, across: bool = False) -> Tensor:
    """Return ``H = ZᵀZ`` of a feature batch (n×D) in float64 (paper, eq. 13).

    With ``across`` the batch is what all processes of a distributed run hold together.
    """
    features = real(features).to(torch.float64)
    if not across or world() == 1:  # processes must not part ways: what reads the sum refuses it
        check_size(features, "features", error=NumericalError)
    hessian = symmetric(features.mT @ features)
    return summed_with_gradient(hessian) if across else hessian


def hessian_to_theta(theta: Tensor, gram: Tensor, gradient: Tensor) -> Tensor:
    """Return ``∇_θ R(θᵀKθ) = 2Kθ·∇_H R`` for a symmetric ``∇_H R`` (paper, theorem 4.2)."""
    return 2 * _product(real(gram), real(theta), real(gradient))


def _product(*factors: Tensor) -> Tensor:
    """Multiply matrices in float64; return the product in their common dtype."""
    for factor in factors:
        check_size(factor, "numbers of a matrix", LARGEST_MATRIX, NumericalError)
    product = functools.reduce(torch.matmul, (factor.to(torch.float64) for factor in factors))
    dtypes = (factor.dtype for factor in factors)
    return in_dtype(product, functools.reduce(torch.promote_types, dtypes), "a product")


def _singular(
    matrix: Tensor, rank: int | None = None, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the SVD ``U, σ, V`` of the non-zero part, largest first, in float64.

    Without a ``rank`` the cut-off of ``spectrum`` decides, for a matrix that was held in ``dtype``.
    """
    s = matrix.to("cpu")
    if rank is not None and not 0 <= rank <= min(s.shape):
        raise InputError(f"rank={rank}: expected 0 to {min(s.shape)}, the matrix's smaller side.")
    if s.shape[0] == s.shape[1] and torch.equal(s, s.T):
        values, vectors = torch.linalg.eigh(s)
        order = values.abs().argsort(descending=True)
        sigma, v = values[order].abs(), vectors[:, order]
        u = v * values[order].sign()
    else:
        u, sigma, vh = torch.linalg.svd(s, full_matrices=False)
        v = vh.T
    if rank is None:
        rank = int((sigma > sigma[0] * relative_cutoff(max(s.shape), dtype=dtype)).sum())
    return u[:, :rank], sigma[:rank], v[:, :rank]


def tied(sigma: Tensor, at: int) -> Tensor:
    """Return a mask of the singular values that rounding cannot tell from ``sigma[at]``."""
    return (sigma - sigma[at]).abs() <= 10 * relative_cutoff(len(sigma)) * sigma[0]


def _extreme(u: Tensor, sigma: Tensor, v: Tensor, at: int) -> Tensor:
    """Return ``σ·u vᵀ`` at one end, averaged over ties: of the Clarke subdifferential."""
    ties = tied(sigma, at)
    return (u[:, ties] * sigma[ties]) @ v[:, ties].T / int(ties.sum())


def _well_of(s: Tensor, largest: Tensor, top: Tensor) -> Pair:
    """Return R_well from projectors, as the next two do theirs, without leaving the accelerator."""
    return (largest**2 - s.square().sum() / len(s)) / 2, largest * top - s / len(s)


def _ill_of(s: Tensor, smallest: Tensor, bottom: Tensor, k: int) -> Pair:
    p = power_of_two(s)  # at unit scale, where gap² fits
    s, smallest = s / p, smallest / p
    gap = (s.square().sum() / k - smallest**2) / 2
    if float(gap) < 10 * relative_cutoff(k) * float(smallest**2):
        return s.new_full((), float("inf")), torch.zeros_like(s)
    return 1 / gap / p / p, (smallest * bottom - s / k) / gap**2 / p / p / p


def _kappa_of(largest: Tensor, top: Tensor, smallest: Tensor, bottom: Tensor) -> Pair:
    return largest / smallest, (top - largest / smallest * bottom) / smallest


def _lower(matrix: Tensor, rank: int | None, dtype: torch.dtype) -> End | None:
    """Return the lower end on an accelerator; None where ``eigh`` has to find it."""
    if not matrix.is_cuda:
        return None
    end = trailing_projector(matrix, relative_cutoff(len(matrix), dtype=dtype))
    return end if end is not None and rank in (None, end.rank) else None


class _ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.to(source)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad * ctx.saved_tensors[0], None, None


def closed_form(source: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    """Return ``value`` as a function of ``source`` whose gradient is known."""
    return _ClosedForm.apply(source, value, gradient)


def _evaluated(
    formula: Callable[..., Pair], matrix: Tensor, what: str, rank: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the matrix, and value and gradient in its dtype; ∞ (R_ill at κ = 1) stays."""
    matrix = real(matrix)
    check_size(matrix, "numbers of the matrix", LARGEST_MATRIX, NumericalError)
    value, gradient = formula(matrix.detach().to(torch.float64), rank, matrix.dtype)
    if not bool(torch.isinf(value)):
        value = in_dtype(value, matrix.dtype, what)
    gradient = in_dtype(gradient, matrix.dtype, f"the gradient of {what}")
    return matrix, value.to(matrix), gradient.to(matrix)


def _well(s: Tensor, rank: int | None = None, dtype: torch.dtype = torch.float64) -> Pair:
    if not bool(s.any()):
        return s.new_zeros(()), torch.zeros_like(s)
    if s.is_cuda:
        return _well_of(s, *leading_projector(s))
    u, sigma, v = _singular(s, min(s.shape))  # rank plays no part
    gaps = (sigma[0] - sigma) * (sigma[0] + sigma)  # sums of these do not cancel
    return gaps.mean() / 2, _extreme(u, sigma, v, 0) - s.to("cpu") / len(sigma)


def r_well(matrix: Tensor) -> Tensor:
    """Return ``R_well(S) = ½‖S‖₂² − ‖S‖²_F/2p``, p the smaller side (paper, eq. 3).

    Zero only for S = 0 or a full-rank S with κ = 1; minimising it lowers κ (Nenov et al. 2024).

    >>> float(r_well(torch.diag(torch.tensor([2.0, 1.0]))))
    0.75
    """
    return closed_form(*_evaluated(_well, matrix, "R_well"))


def r_well_gradient(matrix: Tensor) -> Tensor:
    """Return ``∇_S R_well = σ₁u₁v₁ᵀ − S/p`` (paper, theorem A.1(3)); zero at ``S = 0``."""
    return _evaluated(_well, matrix, "R_well")[2]


def _ill(s: Tensor, rank: int | None = None, dtype: torch.dtype = torch.float64) -> Pair:
    if (end := _lower(s, rank, dtype)) is not None:
        return _ill_of(s, *end)
    u, sigma, v = _singular(s, rank, dtype)
    if not len(sigma) or bool(tied(sigma, -1).all()):
        return s.new_full((), float("inf")), torch.zeros_like(s)
    p = power_of_two(sigma)  # at unit scale, where gap² fits
    sigma, s = sigma / p, s.to("cpu") / p
    gap = ill_gap(sigma)
    gradient = (_extreme(u, sigma, v, -1) - s / len(sigma)) / gap**2
    return 1 / gap / p / p, gradient / p / p / p


def ill_gap(sigma: Tensor) -> Tensor:
    """Return ``1/R_ill = ‖S‖²_F/2k − σ_k²/2`` of non-zero singular values, without cancellation."""
    return ((sigma - sigma[-1]) * (sigma + sigma[-1])).mean() / 2


def r_ill(matrix: Tensor, rank: int | None = None) -> Tensor:
    """Return ``R_ill(S) = 1/(‖S‖²_F/2k − σ_k²/2)``, with k the rank (paper, eq. 8).

    Pass ``rank`` where theory knows it (θᵀKθ has the rank of K); otherwise it is numerical.
    Minimising R_ill raises κ. Where all non-zero singular values agree it is infinite, with
    gradient zero.

    >>> float(r_ill(torch.diag(torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64))))
    1.3333333333333333
    """
    return closed_form(*_evaluated(_ill, matrix, "R_ill", rank))


def r_ill_gradient(matrix: Tensor, rank: int | None = None) -> Tensor:
    """Return ``∇_S R_ill = (σ_k u_k v_kᵀ − S/k)·R_ill²`` (paper, theorem 4.1(3))."""
    return _evaluated(_ill, matrix, "R_ill", rank)[2]


def _kappa(s: Tensor, rank: int | None = None, dtype: torch.dtype = torch.float64) -> Pair:
    if (end := _lower(s, rank, dtype)) is not None:
        return _kappa_of(*leading_projector(s), end.smallest, end.bottom)
    u, sigma, v = _singular(s, rank, dtype)
    if not len(sigma) or not bool(sigma[-1] > 0):
        raise InputError("the matrix is zero, so its condition number is undefined.")
    kappa, top = sigma[0] / sigma[-1], _extreme(u, sigma, v, 0) / sigma[0] ** 2
    return kappa, kappa * (top - _extreme(u, sigma, v, -1) / sigma[-1] ** 2)


def kappa(matrix: Tensor, rank: int | None = None) -> Tensor:
    """Return ``κ(S) = σ₁/σ_k``, differentiable; what the *Opt κ* baseline descends on.

    >>> float(kappa(torch.diag(torch.tensor([6.0, 2.0, 0.0]))))
    3.0
    """
    return closed_form(*_evaluated(_kappa, matrix, "κ", rank))


def kappa_gradient(matrix: Tensor, rank: int | None = None) -> Tensor:
    """Return ``∇_S κ = u₁v₁ᵀ/σ_k − (σ₁/σ_k²)·u_k v_kᵀ``, averaged over ties; zero at κ = 1."""
    return _evaluated(_kappa, matrix, "κ", rank)[2]
