"""Choose which places of a long curve or spectrum to keep: evenly spread on a log scale."""

from __future__ import annotations


def log_places(count: int, most: int) -> list[int]:
    """Return at most ``most`` places from 1 to ``count``, both ends included.

    >>> log_places(1000, 4), log_places(3, 64), log_places(0, 64)
    ([1, 10, 100, 1000], [1, 2, 3], [])
    """
    return sorted({round(count ** (i / (most - 1))) for i in range(most)}) if count else []


def log_steps(last: int) -> list[int]:
    """Return 0, about twelve steps in each factor of ten, and ``last``.

    >>> log_steps(10)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
    """
    wanted = {0, last, *(round(10 ** (i / 12)) for i in range(12 * 7))}
    return sorted(step for step in wanted if step <= last)
