"""Successive halving: many settings for a few steps, the best third for more, the best to the end.

Short runs misjudge two things, so both get a second chance: rates, which are widened at every
length, and augmented images, the best of which goes on even if it lags. Probes widen by the same
rule (``attacks/grid.py``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Space = Mapping[str, Sequence[Any]]
Choice = Mapping[str, Any]
TOTAL = 6  # budgets: optimizer steps of all runs of a search together
FIRST = 12  # settings of the shortest runs, or the whole grid of rates if that is larger
PARTS = (9, 3, 1)  # of the budget: how long runs are
GRID = ("optimizer", "rate")  # all combinations are tried
SLOW = "augment"  # short runs judge it wrongly: the best of each value goes on
NEXT, FURTHEST = 10**0.5, 100.0  # step to a further value, and how far beyond the first ones
WIDENED = ("rate", "width")  # settings that are searched until the best value is inside
SCALES = (*WIDENED, "primary_rate")  # settings whose best value may be at an edge


def halve(
    space: Space, run: Callable[[Choice, int], float], budget: int, seed: int, widen: bool = True
) -> None:
    """Call ``run(settings, steps)``, which returns a validation score, within ``TOTAL`` budgets.

    Each length of runs may take an equal share of the steps that are left. While the best rate is
    at an edge of those tried with its optimizer, a rate half a decade further is tried.
    """
    left, lengths = TOTAL * budget, sorted({max(1, budget // part) for part in PARTS})
    chosen, tried = first_choices(space, seed), list[Choice]()
    for place, steps in enumerate(lengths):
        if len(chosen) == 1 and steps < budget:
            continue  # nothing to compare
        most, scores = left // (len(lengths) - place) // steps, list[tuple[float, Choice]]()
        while chosen and len(scores) < most:
            choice = chosen.pop(0)
            scores.append((run(choice, steps), choice))
            tried.append(choice)
            if not chosen and widen:
                chosen = further(max(scores, key=lambda s: s[0])[1], tried, space)
        left -= len(scores) * steps
        ranked = [choice for _, choice in sorted(scores, key=lambda s: -s[0])]
        chosen = _best(ranked, space)


def _best(ranked: Sequence[Choice], space: Space) -> list[Choice]:
    """Return the best third, and among them the best of each value that is slow to show."""
    slow = [next((c for c in ranked if c[SLOW] == v), None) for v in space.get(SLOW, ())]
    kept = [choice for choice in ranked if any(choice is s for s in slow)]
    kept += [choice for choice in ranked if choice not in kept]
    return kept[: max(len(slow), math.ceil(len(ranked) / 3))]


def first_choices(space: Space, seed: int) -> list[Choice]:
    """Return settings to begin with: all, if few; else the whole grid of rates, and more.

    The other settings are drawn by the seed, each value equally often.
    """
    if math.prod(map(len, space.values())) <= FIRST:
        return [dict(zip(space, v, strict=True)) for v in itertools.product(*space.values())]
    generator = np.random.default_rng(seed)
    grid = list(itertools.product(*(space[name] for name in GRID if name in space)))
    count = max(FIRST, len(grid))

    def drawn(values: Sequence[Any]) -> list[Any]:
        return [values[i % len(values)] for i in generator.permutation(count)]

    more = np.resize(generator.permutation(len(grid)), count - len(grid))
    pairs = grid + [grid[i] for i in more]
    columns = {name: drawn(values) for name, values in space.items() if name not in GRID}
    for place, name in enumerate(name for name in GRID if name in space):
        columns[name] = [pair[place] for pair in pairs]
    return [{name: columns[name][i] for name in space} for i in range(count)]


def values_tried(name: str, choice: Choice, tried: Sequence[Choice]) -> list[float]:
    """Return the values of a setting tried with a choice's optimizer, in order."""
    same = [c for c in tried if c.get("optimizer") == choice.get("optimizer")]
    return sorted({c[name] for c in same if name in c})


def inside(name: str, choice: Choice, tried: Sequence[Choice]) -> bool:
    """Return True if lower and higher values than the chosen one were tried."""
    known = values_tried(name, choice, tried)
    return bool(known) and known[0] < choice[name] < known[-1]


def further(best: Choice, tried: Sequence[Choice], space: Space) -> list[Choice]:
    """Return the best settings with a rate or width half a decade beyond its edge, if at one."""
    found = list[Choice]()
    for name in (name for name in WIDENED if isinstance(best.get(name), float)):
        known = values_tried(name, best, tried)
        low, high = min(space[name]) / FURTHEST, max(space[name]) * FURTHEST
        factors = [1 / NEXT] * (best[name] == known[0]) + [NEXT] * (best[name] == known[-1])
        wider = [best[name] * factor for factor in factors]
        found += [{**best, name: v} for v in wider if 0.99 * low <= v <= 1.01 * high]
    return found
