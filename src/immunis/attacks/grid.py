"""How a probe's settings are searched: all of them, then further rates, then further probes.

An attack that changes a copy of the model first may read several things of it (``reading``). All
meet the first probe. The one that validates best then meets the others, as do the copy's features.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from immunis.attacks.halving import Choice, Space, further


def explore(
    space: Space, run: Callable[[Sequence[Choice]], Sequence[float]], widen: bool = True
) -> None:
    """Call ``run(choices)``, which returns a validation score for each, until none is left.

    While the best rate or width is at an edge of those tried, half a decade further is tried.
    """
    readings, probes = space.get("read", ()), space.get("probe", ())
    first = {**space, "probe": probes[:1]} if readings else space
    chosen: list[Choice] = [
        dict(zip(first, values, strict=True)) for values in itertools.product(*first.values())
    ]
    tried, scores = list[Choice](), list[float]()
    while chosen:
        scores += run(chosen)
        tried += chosen
        best = max(zip(scores, tried, strict=True), key=lambda pair: pair[0])[1]  # first of equals
        chosen = further(best, tried, space) if widen else []
        if readings:
            chosen = [{**choice, "read": reading} for choice in chosen for reading in readings]
    if readings:
        both = {best["read"]: best, readings[0]: {**best, "read": readings[0]}}
        run([{**choice, "probe": probe} for choice in both.values() for probe in probes[1:]])
