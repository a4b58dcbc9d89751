"""Linear probing by Adam on cross-entropy."""

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.curves import train_linear


def run(arena: Arena, settings: Settings) -> Curve:
    """Train a linear probe on features of unit mean square."""
    return train_linear(arena.features().scaled(), settings["rate"])


ATTACK = Attack(run, {"rate": (0.01, 0.001, 0.1)}, place=4, telling=4)
