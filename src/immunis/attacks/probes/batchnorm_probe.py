"""A linear probe behind a BatchNorm layer, trained by Adam."""

from torch import nn

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.learning import train_linear


def run(arena: Arena, settings: Settings) -> Curve:
    """Learn the scale and shift of every feature together with the probe."""
    features = arena.features().scaled()
    return train_linear(features, settings["rate"], nn.BatchNorm1d(features.dimension))


ATTACK = Attack(run, {"rate": (0.01, 0.001, 0.1)}, anticipated=True, place=10)
