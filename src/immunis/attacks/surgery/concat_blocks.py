"""Probe the last blocks side by side."""

import numpy as np

from immunis.attacks.contract import Arena, Arrays, Attack, Settings

MOST = 4


def features(arena: Arena, settings: Settings) -> Arrays:
    """Return the standardised outputs of the last n stages, side by side."""
    train, test = list[np.ndarray](), list[np.ndarray]()
    for name in arena.cut.stages[-settings["blocks"] :]:
        fit = arena.cache[name][0][arena.rows[0]]
        deviation = fit.std(0)
        scale = np.where(deviation > 1e-12 * deviation.max(), deviation, np.inf)
        for part, values in zip((train, test), arena.cache[name], strict=True):
            part.append((values - fit.mean(0)) / scale)
    return np.concatenate(train, axis=1), np.concatenate(test, axis=1)


SETTINGS = {"blocks": lambda arena: range(2, min(MOST, len(arena.earlier_stages) + 1) + 1)}
ATTACK = Attack(settings=SETTINGS, reads=lambda cut: cut.stages[-MOST:], features=features, place=2)
