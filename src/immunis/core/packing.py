"""Booleans and floats by row as short text, for records: eight booleans a byte, floats as float32.

A record holds how each test row was answered in every run, so that intervals can be made again.
"""

from __future__ import annotations

import base64
import binascii

import numpy as np

from immunis.core.errors import InputError
from immunis.core.shapes import Packed


def packed(values: np.ndarray) -> Packed:
    """Return booleans or floats (n,) as base64 text with their number and kind.

    >>> packed(np.array([True, False, True]))
    {'kind': 'booleans', 'rows': 3, 'base64': 'oA=='}
    """
    if values.dtype == bool:
        raw, kind = np.packbits(values).tobytes(), "booleans"
    else:
        raw, kind = values.astype("<f4").tobytes(), "floats"
    return Packed(kind=kind, rows=len(values), base64=base64.b64encode(raw).decode())  # type: ignore[typeddict-item]


def unpacked(values: Packed) -> np.ndarray:
    """Return what ``packed`` made text of: booleans, or floats as float64.

    Raises:
        InputError: for text that does not hold as many rows as it says.
    """
    kind, rows = values["kind"], values["rows"]
    try:
        raw = base64.b64decode(values["base64"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(
            f"packed {kind} are not base64 ({error}); make the record again."
        ) from error
    wanted = -(-rows // 8) if kind == "booleans" else 4 * rows
    if len(raw) != wanted:
        raise InputError(
            f"{rows} packed {kind} came as {len(raw)} bytes; expected {wanted}. Make the record "
            "again."
        )
    if kind == "booleans":
        return np.unpackbits(np.frombuffer(raw, np.uint8), count=rows).astype(bool)
    return np.frombuffer(raw, "<f4").astype(np.float64)
