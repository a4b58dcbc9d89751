"""Checks on numbers that users bring: real, finite, of matching shapes; and hashes of rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from immunis.core.errors import InputError

HASHED = 1 << 18  # numbers that a thread hashes at a time
_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_REAL = (*_INTEGERS, torch.float16, torch.bfloat16, torch.float32, torch.float64)
EPS64 = torch.finfo(torch.float64).eps


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
        raise InputError(f"{where}: a tensor without data, or of ragged rows, came.")
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype in _WIDE_UNSIGNED:
        if tensor.dtype is torch.uint64 and bool((tensor.to(torch.int64) < 0).any()):
            raise InputError(f"{where}: integers of 2**63 and more came; rescale them.")
        tensor = tensor.to(torch.int64)
    if tensor.dtype not in _REAL:
        needed = "real numbers in a common dtype are needed; convert them, as with .float()"
        raise InputError(f"{where}: dtype {tensor.dtype} came; {needed}.")
    return tensor


def _from_array(values: Any, where: str) -> Tensor:
    if np.ma.is_masked(values):
        count = np.ma.count_masked(values)
        raise InputError(f"{where}: {count} masked value(s) came; drop those rows or fill them.")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{where}: rows of unequal length came ({error}).") from error
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        needed = "plain numbers are needed; encode categories first, as with sklearn's LabelEncoder"
        raise InputError(f"{where}: dtype {array.dtype} came; {needed}.")
    return torch.as_tensor(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def check_batch(inputs: Tensor, labels: Tensor, where: str) -> None:
    """Raise InputError for wrong shapes, NaN or infinite values, or negative classes."""
    if problem := _problem_of_inputs(inputs) or _problem_of_labels(labels):
        raise InputError(f"{where}: {problem}")


def _problem_of_inputs(inputs: Tensor) -> str | None:
    shape = tuple(inputs.shape)
    if inputs.ndim < 2:
        wanted = "expected (samples, features). For a single feature pass inputs[:, None]."
        return f"inputs have shape {shape}; {wanted}"
    if len(inputs) and 0 in shape:
        return f"inputs have shape {shape}: no features."
    ends = torch.aminmax(inputs) if inputs.is_floating_point() and inputs.numel() else ()
    if all(math.isfinite(end) for end in ends):  # one pass, no copy
        return None
    bad = int((~torch.isfinite(inputs)).sum())
    return f"{bad} NaN or infinite input value(s); drop those rows or fill them."


def _problem_of_labels(labels: Tensor) -> str | None:
    shape = tuple(labels.shape)
    if labels.is_floating_point():
        if labels.ndim not in (1, 2):
            wanted = "expected (samples,) or (samples, targets)"
            return f"regression labels have shape {shape}; {wanted}."
        finite = bool(torch.isfinite(labels).all())
        return None if finite else "NaN or infinite label(s); drop those rows first."
    if labels.ndim != 1:
        wanted = "expected (samples,) of integers. For one-hot labels pass labels.argmax(1)."
        return f"class labels have shape {shape}; {wanted}"
    if len(labels) and labels.dtype != torch.bool and (least := int(labels.min())) < 0:
        return f"class label {least} is negative; drop ignored samples and number classes from 0."
    return None


def epsilon_of(dtype: torch.dtype) -> float:
    """Return the spacing of numbers next to 1; integers are exact in float64."""
    return torch.finfo(dtype).eps if dtype.is_floating_point else EPS64
