"""Linear probing by gradient descent with exact line search (the paper's attacker)."""

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.learning import least_squares
from immunis.theory.steps import line_search


def run(arena: Arena, settings: Settings) -> Curve:
    """Descend from zero, with or without an intercept."""
    return least_squares(arena.features(), line_search, settings["bias"])


ATTACK = Attack(run, {"bias": (True, False)}, anticipated=True, preset="quick", place=1)
