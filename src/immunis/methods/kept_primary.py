"""Whether a defence kept the primary task, and a warning where it did not.

A model that lost its primary task is computed and measured like any other, but not released
without a word: ``immunize`` warns, ``immunis immunize`` and ``export`` refuse. One that lost more
than the tolerance, but not that much, is released with a warning.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from immunis.core.errors import LostPrimaryWarning
from immunis.theory.score_interval import score_interval

TIMES = 4  # tolerances that the primary score may fall by
P = ParamSpec("P")
R = TypeVar("R", bound=Any)


def most_lost(before: np.ndarray, after: np.ndarray, tolerance: float) -> float:
    """Return how far a primary score may fall, from the answers of the same rows before and after.

    Four tolerances, and for classes the distance from the change to the better end of its 95%
    interval: that much may be chance of the rows. For R² no such distance is known.

    >>> right = np.ones(10_000, dtype=bool)
    >>> round(most_lost(right, np.arange(10_000) >= 300, 0.005), 4)
    0.0232
    """
    if before.dtype != bool:
        return TIMES * tolerance
    change = after.mean() - before.mean()
    return float(TIMES * tolerance + score_interval(after, before)[1] - change)


def primary_kept(
    before: float | None,
    after: float | None,
    answers: tuple[np.ndarray, np.ndarray],
    tolerance: float,
) -> dict[str, Any]:
    """Return what a record says of a primary score: how far it may fall, and if it fell no more.

    ``answers`` are those of the same rows before and after (``theory.scores.row_hits``). Both
    figures are None where no score is known.
    """
    if before is None or after is None or math.isnan(after - before):
        return {"most_lost": None, "kept": None}
    most = most_lost(*answers, tolerance)
    return {"most_lost": most, "kept": before - after <= most}


def warns(call: Callable[P, R]) -> Callable[P, R]:
    """Make a defence warn of a primary task that was lost; the record is measured at once."""

    @wraps(call)
    def defended(*given: P.args, **named: P.kwargs) -> R:
        result = call(*given, **named)
        figures = result.record.figures
        score, within = figures["primary_score"], figures["definition"]["score"]["holds"]
        told = {
            False: ", by more than {:.3g}: the model lost its primary task. Do not release it; "
            "weaken the method, or train it for longer.",
            True: ": more than the tolerance. From a loss of {:.3g} on the model would be refused.",
        }
        if within is False and result.kept is not None:
            warnings.warn(
                f"the primary score fell from {score['before']:.3g} to {score['after']:.3g} on "
                f"{score['split']} data" + told[result.kept].format(score["most_lost"]),
                LostPrimaryWarning,
                stacklevel=2,
            )
        return result

    return defended
