"""Standardise every feature, then descend: undoes badly scaled coordinates."""

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.learning import least_squares
from immunis.theory.steps import line_search


def run(arena: Arena, settings: Settings) -> Curve:
    """Descend with exact line search on standardised features."""
    return least_squares(arena.features().standardised(), line_search)


ATTACK = Attack(run, anticipated=True, place=8)
