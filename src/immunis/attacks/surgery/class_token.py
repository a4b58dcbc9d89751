"""Probe the first token of each stage, where transformers keep their class."""

from immunis.attacks.arrays import Arrays
from immunis.attacks.contract import Arena, Attack, NotApplicableError, Settings
from immunis.models.positions import FIRST


def stages(arena: Arena) -> tuple[str, ...]:
    """Return the stages with tokens; raise NotApplicableError if there are none."""
    if not arena.cut.token_stages:
        raise NotApplicableError("no stage gives tokens")
    return arena.cut.token_stages


def features(arena: Arena, settings: Settings) -> Arrays:
    """Return one stage's first token."""
    return arena.cache[settings["layer"] + FIRST]


ATTACK = Attack(
    settings={"layer": stages},
    reads=lambda cut: [stage + FIRST for stage in cut.token_stages],
    features=features,
    place=6,
)
