"""The range of numbers that the theory takes.

Squares, cubes and inverses leave float64 long before the numbers themselves do. Every entry point
checks once that sizes lie where products of three matrices fit; nothing inside rescales.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from immunis.core.errors import ImmunisError, InputError, NumericalError
from immunis.data.checks import as_tensor

LARGEST_FEATURE = 1e46  # of features and targets: all that float32 holds
LARGEST_MATRIX = 1e100  # of Gram matrices, and of what is as large


def check_size(
    values: Tensor,
    what: str,
    largest: float = LARGEST_FEATURE,
    error: type[ImmunisError] = InputError,
) -> None:
    """Raise ``error`` unless ``max|values|`` is 0 or between ``1/largest`` and ``largest``."""
    peak = float(values.detach().abs().max()) if values.numel() else 0.0
    if not peak <= largest or 0 < peak < 1 / largest:  # NaN fails the first
        raise error(
            f"{what} reach {peak:.3g} in size; expected 0, or {1 / largest:.0e} to {largest:.0e}. "
            "Drop NaN and infinities, and rescale the rest; in training, lower the step size or "
            "the weights of the regularizers."
        )


def in_dtype(values: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """Return values in a dtype; raise ``NumericalError`` if the largest leaves its range."""
    found, limits = values.to(dtype), torch.finfo(dtype)
    size = float(found.detach().abs().max()) if found.numel() else 0.0
    if not size <= limits.max or (size < limits.tiny and bool(values.any())):
        fault = "too small" if size <= limits.max else "too large"
        raise NumericalError(
            f"{what} is {fault} for {dtype}, which holds {limits.tiny:.0e} to {limits.max:.0e}. "
            "Rescale the features or the matrix, or pass it in float64; in training, lower the "
            "step size."
        )
    return found


def power_of_two(values: Tensor) -> float:
    """Return the power of two p with ``p ≤ max|values| < 2p``, 1 for zeros; dividing by p is exact.

    >>> power_of_two(torch.tensor([0.0, -12.0]))
    8.0
    """
    peak = float(values.detach().abs().max()) if values.numel() else 0.0
    if not math.isfinite(peak):
        raise NumericalError("features hold NaN or infinities: drop such rows.")
    return math.ldexp(1.0, math.frexp(peak)[1] - 1) if peak else 1.0


def real(matrix: Tensor | np.ndarray) -> Tensor:
    """Return a real matrix as a tensor, integers as float64; raise ``InputError`` otherwise."""
    matrix = as_tensor(matrix, "the matrix")
    if matrix.ndim != 2 or not matrix.numel():
        raise InputError(f"expected a matrix, got shape {tuple(matrix.shape)}.")
    return matrix if matrix.is_floating_point() else matrix.to(torch.float64)


def square(matrix: Tensor | np.ndarray) -> Tensor:
    """Return a real square matrix as ``real`` does."""
    matrix = real(matrix)
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"expected a square matrix, got shape {tuple(matrix.shape)}.")
    return matrix
