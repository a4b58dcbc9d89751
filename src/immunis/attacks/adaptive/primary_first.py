"""Tune on public primary data first, to shake a defence off, then probe."""

from immunis.attacks.contract import Arena, Attack, Made, Searched, Settings
from immunis.attacks.reading import readings, reread
from immunis.attacks.retrain import RATES, on_primary


def features(arena: Arena, settings: Settings) -> Made:
    """Tune the whole network on the task it was released for, then read the features anew."""
    cut = arena.cut.copy()
    return reread(arena, cut, on_primary(arena, cut, settings["rate"]))


SETTINGS: Searched = {"rate": RATES, "read": readings}
ATTACK = Attack(settings=SETTINGS, features=features, retrains=True, every_probe=True, place=8)
