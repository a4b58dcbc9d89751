"""Linear probing by SGD with momentum on cross-entropy."""

from torch.optim import SGD

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.curves import train_linear


def run(arena: Arena, settings: Settings) -> Curve:
    """Train a linear probe on features of unit mean square."""
    features = arena.features().scaled()
    return train_linear(features, settings["rate"], optimizer=SGD, momentum=0.9)


ATTACK = Attack(run, {"rate": (0.1, 0.01, 1.0)}, place=3)
