"""Whether a learning curve had settled when the budget ended."""

from collections.abc import Mapping, Sequence

HALF_A_POINT = 0.005


def still_rising(curve: Sequence[Mapping[str, float]], noise: float = HALF_A_POINT) -> bool:
    """Return True if the last third of a curve's steps raised the best score by more than noise.

    ``curve`` holds the ``steps`` and ``validation`` of each point, in order. Rates fall to zero at
    the end of the budget, which lifts the last point by itself: so a curve that settled may be
    called rising, but not the other way round.

    >>> points = [(10, 0.5), (100, 0.8), (150, 0.9)]
    >>> still_rising([{"steps": s, "validation": v} for s, v in points])
    True
    """
    if len(curve) < 2:
        return False  # solved at once
    late = curve[-1]["steps"] * 2 / 3
    before = [point["validation"] for point in curve if point["steps"] <= late]
    after = [point["validation"] for point in curve if point["steps"] > late]
    return not before or max(after) > max(before) + noise
