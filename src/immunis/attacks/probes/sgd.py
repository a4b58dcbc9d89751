"""Linear probing by SGD with momentum on cross-entropy."""

from collections.abc import Iterator, Sequence

from torch.optim import SGD

from immunis.attacks.contract import Arena, Attack, Settings, Step
from immunis.attacks.learning import train_linears


def together(arena: Arena, choices: Sequence[Settings]) -> Iterator[list[Step]]:
    """Train a linear probe on features of unit mean square, at all rates at once."""
    rates = [each["rate"] for each in choices]
    return train_linears(arena.features().scaled(), rates, SGD, momentum=0.9)


ATTACK = Attack(settings={"rate": (0.1, 0.01, 1.0)}, together=together, anticipated=True, place=3)
