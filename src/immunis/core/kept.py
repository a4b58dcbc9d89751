"""Whether a primary score is kept to within a tolerance, as far as its interval tells."""

from __future__ import annotations

import math


def kept(low: float, high: float, finest: float, tolerance: float) -> bool | None:
    """Return True if a whole interval lies above minus the tolerance, False if it does not.

    ``finest`` is the smallest loss that so many rows can exclude, with none of them lost. If the
    tolerance is smaller, these rows can show a loss at most: None, unless they do. None also for
    an interval that is not known.

    >>> kept(-0.014, 0.014, finest=0.014, tolerance=0.005) is None  # 268 rows, all answered alike
    True
    """
    if math.isnan(low) or math.isnan(high):
        return None
    if low >= -tolerance:
        return True
    return None if finest > tolerance and high >= -tolerance else False
