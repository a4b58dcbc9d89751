"""Probe the last blocks, or all of them, side by side."""

from immunis.attacks.arrays import Arrays
from immunis.attacks.contract import Arena, Attack, Settings
from immunis.attacks.reading import side_by_side


def features(arena: Arena, settings: Settings) -> Arrays:
    """Return the standardised outputs of the last n stages, side by side."""
    stages = arena.cut.stages[-settings["blocks"] :]
    return side_by_side(arena, [arena.cache[stage] for stage in stages])


def blocks(arena: Arena) -> tuple[int, ...]:
    """Return how many stages to put together: the last two, and all."""
    return tuple(sorted({2, len(arena.earlier_stages) + 1}))


ATTACK = Attack(
    settings={"blocks": blocks}, reads=lambda cut: cut.stages, features=features, place=2
)
