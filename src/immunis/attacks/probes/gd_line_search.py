"""Linear probing by gradient descent with exact line search (the paper's attacker)."""

from __future__ import annotations

from immunis.attacks.contract import Arena, Attack, Point, Settings
from immunis.attacks.probes.shared import least_squares_curve
from immunis.theory.descent import line_search


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Descend from zero, with or without an intercept."""
    return least_squares_curve(arena.features(), line_search, settings["bias"])


ATTACK = Attack(
    "gd_line_search",
    "gradient descent with exact line search, squared loss (the paper's attacker)",
    run,
    lambda arena: {"bias": (True, False)},
)
