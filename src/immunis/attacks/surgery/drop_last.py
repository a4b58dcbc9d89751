"""Drop the last linear map and probe what goes into it."""

from immunis.attacks.arrays import Arrays
from immunis.attacks.contract import Arena, Attack, Settings, before_last


def features(arena: Arena, settings: Settings) -> Arrays:
    """Return the input of the last linear map."""
    return arena.cache[f"{arena.last_linear}:in"]


ATTACK = Attack(reads=before_last, features=features, preset="quick", place=3)
