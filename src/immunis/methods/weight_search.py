"""The strongest defence at the price that a user states: a weight raised until the price is met.

The price is how far the held-out primary score may fall below that of the same training without
the defence. Every weight is a training of its own. Scores are compared row by row, and a fall
counts where it exceeds the tolerance by one standard error.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor

from immunis.training.loop import Fit
from immunis.training.paired import fall
from immunis.training.selection import merit

FIRST, FACTOR = 3.0, 3.0  # weight to begin with, and the step to the next one
LEAST, MOST = 0.1, 100.0
NONE_KEPT = (
    "no weight kept the held-out primary score within the tolerance of the same training without "
    "the defence: the smallest one that was tried counts."
)
Attempt = Callable[[float, Tensor | None], Fit]  # of a weight, and held-out rows to keep


def strongest(
    attempt: Attempt, hits: Callable[[Fit], Tensor], tolerance: float
) -> tuple[float, Fit, Fit, dict[str, Any]]:
    """Return the largest weight that keeps the primary score, its training, the plain one, a log.

    Start at 3 and go up by factors of three while the score is kept and probes read less, or down
    until it is kept. Then try one weight between the best one and the next that cost too much.
    Weight 0 comes first: ``hits(fit)``, its answers to held-out rows, are those to keep.
    """
    plain = attempt(0.0, None)
    reference = hits(plain)
    tried = [_told(0.0, plain)]

    def attempted(weight: float) -> Fit:
        found = attempt(weight, reference)
        tried.append(_told(weight, found))
        return found

    best: tuple[float, Fit] | None = None
    costly, weight = None, FIRST
    while LEAST <= weight <= MOST and (best is None or costly is None):
        last = attempted(weight)
        if last.kept and not _reads_less(last, best):
            break
        if last.kept:
            best = weight, last
        else:
            costly = weight
        weight = weight * FACTOR if costly is None else weight / FACTOR
    if best is not None and costly is not None:
        middle = math.sqrt(best[0] * costly)
        last = attempted(middle)
        if last.kept and _reads_less(last, best):
            best = middle, last
    if best is None:
        best = tried[-1]["weight"], last
        _note(last, NONE_KEPT)
    if told := unresolved(reference, hits(best[1]), tolerance):
        _note(best[1], told)
    return *best, plain, {"primary_to_keep": tried[0]["primary"], "weights_tried": tried}


def unresolved(reference: Tensor, hits: Tensor, tolerance: float) -> str:
    """Return a warning if so few held-out rows cannot tell a fall of ``tolerance``, else ''."""
    rows, noise = len(hits), fall(reference, hits)[1]
    error = max(noise, 1 / rows)
    if not 0 < tolerance < error < math.inf:
        return ""
    needed = math.ceil(max(rows * (noise / tolerance) ** 2, 1 / tolerance))
    return (
        f"tolerance {tolerance:g} is less than {rows} held-out primary rows can tell: the score "
        f"differs by {error:.2g} by chance, and a fall of up to {tolerance + error:.2g} was taken "
        f"for none. It takes some {needed:,} rows: raise held_out, give more data, or a larger "
        "tolerance."
    )


def chosen_row(fit: Fit) -> dict[str, Any]:
    """Return the figures of the evaluation whose weights a training returned."""
    return next(row for row in fit.history if row["step"] == fit.best_step)


def _reads_less(fit: Fit, best: tuple[float, Fit] | None) -> bool:
    """Return True if probes read less than at the best weight, by more than a standard error."""
    if best is None:
        return True
    one, other = ({**chosen_row(part), "least": -math.inf} for part in (fit, best[1]))
    rows = [other, other, one]
    new, old = (merit(row, rows, "probe", -math.inf)[0] for row in (one, other))
    return new > old


def _note(fit: Fit, text: str) -> None:
    warnings.warn(text, stacklevel=4)
    fit.notes.append(text)


def _told(weight: float, fit: Fit) -> dict[str, Any]:
    row = chosen_row(fit)
    figures = {name: row[name] for name in ("primary", "probe", "depths", "chance")}
    return {"weight": weight, "kept": fit.kept, **figures}
