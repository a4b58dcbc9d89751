"""Whiten the features, then descend: with more samples than features no conditioning is left."""

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.learning import least_squares
from immunis.theory.steps import line_search


def run(arena: Arena, settings: Settings) -> Curve:
    """Descend with exact line search on white features."""
    return least_squares(arena.features().white(settings["ridge"]), line_search)


ATTACK = Attack(run, {"ridge": (1e-2, 0.0)}, anticipated=True, preset="quick", place=9)
