"""Both ends of a large spectrum, proven, without a full decomposition.

Lanczos iterations on K find its largest eigenpair, and on K⁻¹, through a Cholesky factor, the
smallest, which inverse iteration refines. A residual ``‖Kv − λv‖`` bounds how far λ is from *an*
eigenvalue; that none lies further out is proven by inertia (Sylvester): ``K − sI`` has a Cholesky
factor exactly if s lies below every eigenvalue. Three factorisations of D³/3 operations
and a few hundred products with vectors replace the 9·D³ of ``eigh``; on the CPU, where memory holds
K twice.

This holds for full rank only. The smallest *non-zero* eigenvalue of a singular matrix hides
behind its null space, which no shift of this kind removes: ``Spectrum.of`` finds the rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from immunis.core.errors import InputError, NumericalError
from immunis.data.checks import EPS64
from immunis.theory.gram import Gram
from immunis.theory.scale import answer, square, unit
from immunis.theory.spectrum import COARSEST, relative_cutoff

TOLERANCE = 1e-10  # of the iterations: relative, in K at the upper end, in K⁻¹ at the lower
REFINEMENTS = 2  # of the lower end, whose vector K⁻¹ tells less of than K needs
MOST_PRODUCTS = 3000
SMALL = 32


@dataclass(frozen=True)
class Extremes:
    """The largest and the smallest eigenvalue of a positive definite matrix, with vectors.

    Attributes:
        largest: λ₁.
        smallest: λ_D.
        largest_error: bound on the error of λ₁: its residual, and the rounding of the matrix,
            ``λ₁·max(D·ε, ε_in²)``, which is the cut-off of ``spectrum``.
        smallest_error: the same of λ_D, and less than λ_D.
        leading: unit eigenvector of λ₁ (D).
        trailing: unit eigenvector of λ_D (D).
    """

    largest: float
    smallest: float
    largest_error: float
    smallest_error: float
    leading: Tensor = field(repr=False)
    trailing: Tensor = field(repr=False)

    @property
    def condition_number(self) -> float:
        """κ = λ₁/λ_D."""
        return self.largest / self.smallest

    @property
    def relative_error(self) -> float:
        """Bound on the relative error of κ."""
        return self.smallest_error / self.smallest + self.largest_error / self.largest


def extremes(source: Gram | Tensor | np.ndarray) -> Extremes:
    """Return the extreme eigenpairs of a Gram, or of a symmetric positive definite matrix.

    Raises:
        InputError: for a matrix that is not symmetric, or singular to working precision.
        NumericalError: if the iterations do not converge, or the proof fails.

    >>> found = extremes(torch.diag(torch.tensor([4.0, 1.0, 2.0], dtype=torch.float64)))
    >>> round(found.largest, 9), round(found.smallest, 9)
    (4.0, 1.0)
    """
    epsilon = source.epsilon if isinstance(source, Gram) else EPS64
    matrix = square(source.matrix() if isinstance(source, Gram) else source)
    share = relative_cutoff(len(matrix), epsilon, matrix.dtype)
    k, exponent = unit(matrix.to("cpu"))
    del matrix  # at D = 8192 each copy takes half a gigabyte
    if not _symmetric(k, max(1e-8, min(10 * share, COARSEST))):
        raise InputError("the matrix is not symmetric; pass a Gram matrix.")
    if not bool(k.any()):
        raise _singular(len(k))
    top, leading = _lanczos(k, lambda v: k @ v)
    noise = float(top) * share
    factor, failed = torch.linalg.cholesky_ex(k)
    if int(failed) or not float(factor.diagonal().min()) ** 2 > noise:
        raise _singular(len(k))
    _, trailing = _lanczos(k, functools.partial(_solved, factor))
    for _ in range(REFINEMENTS):
        trailing = torch.nn.functional.normalize(_solved(factor, trailing), dim=0)
    bottom = trailing @ (k @ trailing)
    del factor
    errors = [noise + _residual(k, *pair) for pair in ((top, leading), (bottom, trailing))]
    if not float(bottom) > errors[1]:  # the proof would only say that it is positive, or less
        raise _singular(len(k))
    for sign, end, error in zip((-1.0, 1.0), (top, bottom), errors, strict=True):
        # top + error − K, and K − (bottom − error)
        shifted = sign * k
        shifted.diagonal().sub_(sign * end - error)
        if int(torch.linalg.cholesky_ex(shifted)[1]):
            raise NumericalError(
                "an eigenvalue beyond the ones found exists: the iterations missed it. Use "
                "Spectrum.of, which decomposes the whole matrix."
            )
    ends = torch.tensor([top, bottom, *errors], dtype=torch.float64)
    largest, smallest, *bounds = answer(ends, exponent, torch.float64, "an eigenvalue").tolist()
    return Extremes(largest, smallest, bounds[0], bounds[1], leading, trailing)


def _symmetric(matrix: Tensor, share: float) -> bool:
    """Whether a matrix of unit scale is symmetric, by blocks of rows that need little memory."""
    return all(
        float((rows - columns.T).abs().max()) <= share
        for rows, columns in zip(matrix.split(512), matrix.split(512, dim=1), strict=True)
    )


def _lanczos(k: Tensor, product: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Rayleigh quotient in K, and vector, of the largest eigenvalue of an operator."""
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    if len(k) < SMALL:  # iterations break down where they span the whole space
        dense = torch.stack([product(axis) for axis in torch.eye(len(k), dtype=torch.float64)])
        vector = torch.linalg.eigh((dense + dense.T) / 2)[1][:, -1]
        return vector @ (k @ vector), vector
    start = torch.randn(len(k), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    operator = LinearOperator(
        tuple(k.shape), lambda v: product(torch.from_numpy(v).reshape(-1)).numpy(), dtype=float
    )
    try:
        _, vectors = eigsh(
            operator, k=1, which="LA", v0=start.numpy(), tol=TOLERANCE, maxiter=MOST_PRODUCTS
        )
    except ArpackError as error:
        raise NumericalError(
            f"no extreme eigenpair after {MOST_PRODUCTS} restarts: the spectrum is too flat at "
            "that end. Use Spectrum.of, which decomposes the whole matrix."
        ) from error
    vector = torch.from_numpy(vectors[:, 0])
    return vector @ (k @ vector), vector


def _solved(factor: Tensor, vector: Tensor) -> Tensor:
    """``(LLᵀ)⁻¹v``; unlike ``cholesky_solve`` this makes no copy of L."""
    half = torch.linalg.solve_triangular(factor, vector[:, None], upper=False)
    return torch.linalg.solve_triangular(factor.T, half, upper=True)[:, 0]


def _residual(k: Tensor, value: Tensor, vector: Tensor) -> float:
    return float((k @ vector - value * vector).norm())


def _singular(dimension: int) -> InputError:
    return InputError(
        f"the {dimension}×{dimension} matrix is singular to working precision: its smallest "
        "non-zero eigenvalue is found by Spectrum.of, which decomposes it. Drop zero, constant and "
        "duplicate features first."
    )
