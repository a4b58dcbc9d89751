"""What an attack costs, and when its learning curve is scored."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch.utils.flop_counter import FlopCounterMode


def checkpoints(budget: int) -> list[int]:
    """Return the steps to score at: 1, 2, 5, 10, 20, 50, ... and the budget.

    >>> checkpoints(30)
    [1, 2, 5, 10, 20, 30]
    """
    marks = (m * 10**e for e in range(7) for m in (1, 2, 5))
    return sorted({*itertools.takewhile(lambda m: m < budget, marks), budget})


def count_flops(call: Callable[[], Any]) -> tuple[Any, float]:
    """Run ``call`` and return its result with the operations that torch counts in it."""
    counter = FlopCounterMode(display=False)
    with counter:
        result = call()
    return result, float(counter.get_total_flops())


def solve_flops(samples: int, dimension: int, outputs: int) -> float:
    """Return the operations of a ridge solve by normal equations; torch counts no solves."""
    return 2.0 * samples * dimension * (dimension + outputs) + 2 / 3 * dimension**3


def whiten_flops(samples: int, dimension: int) -> float:
    """Return the operations of a covariance, its eigenvectors (about 9D³) and a change of basis."""
    return 4.0 * samples * dimension**2 + 9.0 * dimension**3
