"""Checks on numbers that users bring: real, finite, in range, of matching shapes; hashes of rows.

Squares, cubes and inverses leave float64 long before the numbers themselves do. Every entry point
checks once that sizes lie where products of three matrices fit. A few formulas then divide by one
power of two, which rounds nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from immunis.core.errors import ImmunisError, InputError, NumericalError

HASHED = 1 << 18  # numbers that a thread hashes at a time
_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_REAL = (*_INTEGERS, torch.float16, torch.bfloat16, torch.float32, torch.float64)
EPS64 = torch.finfo(torch.float64).eps
TAKEN = (
    "images (n, channels, height, width), tables (n, features), other arrays of numbers, and text "
    "(strings with tokenizer=, or input_ids with attention_mask)"
)
LARGEST_FEATURE = 1e46  # of features and targets: all that float32 holds
LARGEST_MATRIX = 1e100  # of Gram matrices, and of what is as large


def hash_rows(rows: Tensor) -> Iterator[int]:
    """Yield a 128-bit hash of each row's float64 values; -0.0 hashes as 0.0."""
    flat = rows.detach().cpu().flatten(1)

    def hashes(part: Tensor) -> list[int]:
        values = np.ascontiguousarray(part.to(torch.float64).add(0.0).numpy())
        found = (hashlib.blake2b(row.data, digest_size=16).digest() for row in values)
        return [int.from_bytes(digest) for digest in found]

    with ThreadPoolExecutor() as pool:  # hashing long rows releases the interpreter's lock
        for part in pool.map(hashes, flat.split(max(1, HASHED // max(1, flat.shape[1])))):
            yield from part


def as_tensor(values: Any, where: str) -> Tensor:
    """Return real numbers as a dense tensor of a common dtype; raise InputError for others."""
    tensor = values if isinstance(values, Tensor) else _from_array(values, where)
    if tensor.is_meta or tensor.is_nested:
        raise InputError(f"{where}: expected a dense tensor, not a meta or a nested one.")
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype in _WIDE_UNSIGNED:
        if tensor.dtype is torch.uint64 and bool((tensor.to(torch.int64) < 0).any()):
            raise InputError(f"{where}: integers of 2**63 and more came; rescale them.")
        tensor = tensor.to(torch.int64)
    if tensor.dtype not in _REAL:
        wanted = "expected a common dtype of real numbers; convert it, as with .float()"
        raise InputError(f"{where}: dtype {tensor.dtype} came; {wanted}.")
    return tensor


def _from_array(values: Any, where: str) -> Tensor:
    if np.ma.is_masked(values):
        count = np.ma.count_masked(values)
        raise InputError(f"{where}: {count} masked value(s) came; drop those rows or fill them.")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{where}: rows of unequal length ({error}); pad or cut them.") from error
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise InputError(
            f"{where}: expected plain numbers, got dtype {array.dtype}. Taken are {TAKEN}; encode "
            "categories first, as with sklearn's LabelEncoder."
        )
    return torch.as_tensor(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def check_batch(inputs: Tensor, labels: Tensor, where: str) -> None:
    """Raise InputError for wrong shapes, NaN or infinite values, or negative classes."""
    if problem := _problem_of_inputs(inputs) or _problem_of_labels(labels):
        raise InputError(f"{where}: {problem}")


def _problem_of_inputs(inputs: Tensor) -> str | None:
    shape = tuple(inputs.shape)
    if inputs.ndim < 2:
        hint = "For a single feature pass inputs[:, None]."
        return f"inputs have shape {shape}; expected (samples, features). {hint}"
    if len(inputs) and 0 in shape:
        return f"inputs have shape {shape}; expected at least one feature."
    ends = torch.aminmax(inputs) if inputs.is_floating_point() and inputs.numel() else ()
    if all(math.isfinite(end) for end in ends):  # one pass, no copy
        return None
    bad = int((~torch.isfinite(inputs)).sum())
    return f"{bad} NaN or infinite input value(s); drop those rows or fill them."


def _problem_of_labels(labels: Tensor) -> str | None:
    shape = tuple(labels.shape)
    if labels.is_floating_point():
        if labels.ndim not in (1, 2):
            return (
                f"regression labels have shape {shape}; expected (samples,) or (samples, targets)."
            )
        finite = bool(torch.isfinite(labels).all())
        return None if finite else "NaN or infinite label(s); drop those rows first."
    if labels.ndim != 1:
        single = labels.ndim == 2 and shape[1] == 1
        hint = "Pass labels[:, 0]." if single else "For one-hot labels pass labels.argmax(1)."
        wanted = f"expected (samples,) of integers. {hint}"
        return f"class labels have shape {shape}; {wanted}"
    if len(labels) and labels.dtype != torch.bool and (least := int(labels.min())) < 0:
        return f"class label {least} is negative; drop ignored samples and number classes from 0."
    return None


def epsilon_of(dtype: torch.dtype) -> float:
    """Return the spacing of numbers next to 1; integers are exact in float64."""
    return torch.finfo(dtype).eps if dtype.is_floating_point else EPS64


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
