"""Probe an earlier layer: a defence of the last one may have left it untouched."""

from immunis.attacks.arrays import Arrays
from immunis.attacks.contract import Arena, Attack, Settings


def features(arena: Arena, settings: Settings) -> Arrays:
    """Return one stage's pooled output."""
    return arena.cache[settings["layer"]]


SETTINGS = {"layer": lambda arena: arena.earlier_stages}
ATTACK = Attack(
    settings=SETTINGS,
    reads=lambda cut: cut.stages[:-1],
    features=features,
    anticipated=True,
    place=1,
)
