"""Insert a linear layer before the probe: descent then follows another path."""

from torch import nn

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.learning import train_linear


def run(arena: Arena, settings: Settings) -> Curve:
    """Train ``z ↦ V(Uz)`` with U starting at the identity: linear, but preconditioned by depth."""
    features = arena.features().scaled()
    inserted = nn.Linear(features.dimension, features.dimension)
    nn.init.eye_(inserted.weight)
    nn.init.zeros_(inserted.bias)
    return train_linear(features, settings["rate"], inserted)


ATTACK = Attack(run, {"rate": (0.001, 0.01)}, anticipated=True, place=5)
