"""Probe what a stage gives before pooling: its maps or tokens in one row."""

import numpy as np

from immunis.attacks.arrays import Arrays
from immunis.attacks.contract import Arena, Attack, NotApplicableError, Settings
from immunis.models.cut import Cut
from immunis.models.positions import MAPS

MOST = 5  # stages to read: neighbouring blocks of a transformer differ little


def positioned(cut: Cut) -> tuple[str, ...]:
    """Return the stages with positions, evenly spread if many, the first and last among them."""
    chosen = np.linspace(0, len(cut.positioned) - 1, min(MOST, len(cut.positioned)))
    return tuple(cut.positioned[place] for place in chosen.round().astype(int))


def layers(arena: Arena) -> tuple[str, ...]:
    """Return the stages to read; raise NotApplicableError if there are none."""
    if not arena.cut.positioned:
        raise NotApplicableError("no stage gives several positions or tokens")
    return positioned(arena.cut)


def features(arena: Arena, settings: Settings) -> Arrays:
    """Return all numbers of one stage; an audit projects wide ones on principal directions."""
    return arena.cache[settings["layer"] + MAPS]


ATTACK = Attack(
    settings={"layer": layers},
    reads=lambda cut: [stage + MAPS for stage in positioned(cut)],
    features=features,
    place=5,
)
