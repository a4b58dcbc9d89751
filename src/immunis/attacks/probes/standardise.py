"""Standardise every feature, then descend: undoes badly scaled coordinates."""

from __future__ import annotations

from immunis.attacks.contract import Arena, Attack, Point, Settings
from immunis.attacks.probes.shared import least_squares_curve
from immunis.theory.descent import line_search


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Gradient descent with exact line search on standardised features."""
    return least_squares_curve(arena.features().standardised(), line_search, bias=True)


ATTACK = Attack("standardise", "per-feature standardisation, then gradient descent", run)
