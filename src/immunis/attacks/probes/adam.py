"""Linear probing by Adam on cross-entropy."""

from collections.abc import Iterator, Sequence

from immunis.attacks.contract import Arena, Attack, Settings, Step
from immunis.attacks.learning import train_linears


def together(arena: Arena, choices: Sequence[Settings]) -> Iterator[list[Step]]:
    """Train a linear probe on features of unit mean square, at all rates at once."""
    return train_linears(arena.features().scaled(), [each["rate"] for each in choices])


RATES = {"rate": (0.01, 0.001, 0.1)}
ATTACK = Attack(settings=RATES, together=together, anticipated=True, place=4, telling=5)
