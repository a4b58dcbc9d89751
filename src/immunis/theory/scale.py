"""Numbers at unit scale: a power of two is taken out before squaring and put back after.

Squares, cubes and inverses leave the range of float64 long before the numbers themselves do.
Multiplying by a power of two is exact, so what is homogeneous is computed at unit scale and its
answer carried back. An answer that its dtype cannot hold is refused: never infinite, never 0.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from immunis.core.errors import InputError, NumericalError
from immunis.data.checks import as_tensor


def exponent_of(peak: float | Tensor) -> int:
    """Return e with ``2^(e−1) ≤ peak < 2^e``, or 0 for a peak of zero.

    Raises:
        NumericalError: if the peak is NaN or infinite.
    """
    if not math.isfinite(peak):
        raise NumericalError(
            "a matrix holds NaN or infinities: an earlier step diverged, or the data does. Drop "
            "such rows; in training, lower the step size or the weights of the regularizers."
        )
    return math.frexp(float(peak))[1]


def carry(values: Tensor, exponent: int) -> Tensor:
    """Return ``values·2^exponent``; exact where the answer fits float64.

    >>> carry(torch.tensor(3.0, dtype=torch.float64), -1070).item() > 0
    True
    """
    half = exponent // 2
    for part in (half, exponent - half):  # one factor alone could leave the range
        values = values * 2.0 ** min(max(part, -1022), 1023)
    return values


def unit(values: Tensor) -> tuple[Tensor, int]:
    """Return ``values/2^e`` in float64, the largest of them in [½, 1), and e.

    >>> unit(torch.tensor([0.0, 12.0]))
    (tensor([0.0000, 0.7500], dtype=torch.float64), 4)
    """
    values = values.detach().to(torch.float64)
    exponent = exponent_of(values.abs().max()) if values.numel() else 0
    return carry(values, -exponent), exponent


def answer(values: Tensor, exponent: int, dtype: torch.dtype, what: str) -> Tensor:
    """Return ``values·2^exponent`` in a dtype that can hold it.

    Raises:
        NumericalError: if the largest of the values would become infinite, or fall below the
            smallest normal number of the dtype.
    """
    found = carry(values, exponent).to(dtype)
    limits, size = torch.finfo(dtype), float(found.abs().max()) if found.numel() else 0.0
    if not size <= limits.max or (size < limits.tiny and bool(values.any())):
        fault = "too small" if size <= limits.max else "too large"
        raise NumericalError(
            f"{what} is {fault} for {dtype}, which holds "
            f"{limits.tiny:.0e} to {limits.max:.0e}. Rescale the features or the matrix"
            f"{', or pass it in float64' if dtype != torch.float64 else ''}; in training, lower "
            "the step size."
        )
    return found


def real(matrix: Tensor | np.ndarray) -> Tensor:
    """Return a real matrix as a tensor, integers as float64; refuse anything else.

    Raises:
        InputError: for what ``as_tensor`` refuses, no numbers, or another number of dimensions.
    """
    matrix = as_tensor(matrix, "the matrix")
    if matrix.ndim != 2 or not matrix.numel():
        raise InputError(f"expected a matrix, got shape {tuple(matrix.shape)}.")
    return matrix if matrix.is_floating_point() else matrix.to(torch.float64)


def square(matrix: Tensor | np.ndarray) -> Tensor:
    """Return a real square matrix as ``real`` does.

    Raises:
        InputError: for what ``real`` refuses, or sides that differ.
    """
    matrix = real(matrix)
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"expected a square matrix, got shape {tuple(matrix.shape)}.")
    return matrix
