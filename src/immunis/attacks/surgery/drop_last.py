"""Drop the last linear map and probe what goes into it."""

from __future__ import annotations

from collections.abc import Sequence

from immunis.attacks.contract import Arena, Attack, NotApplicableError, Point, Settings
from immunis.attacks.surgery.shared import choice, probe_on
from immunis.models.cut import Cut


def layers(cut: Cut) -> Sequence[str]:
    """The input of the linear layer that makes the features."""
    return () if cut.last_linear is None else (f"{cut.last_linear}:in",)


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Probe the input of the last linear map."""
    return probe_on(arena, *arena.cache[layers(arena.cut)[0]], settings["probe"])


def space(arena: Arena) -> dict[str, Sequence[str]]:
    """The probes."""
    if not layers(arena.cut):
        raise NotApplicableError("the features are not the output of a linear layer")
    return {"probe": choice(arena)}


ATTACK = Attack("drop_last", "drop the last linear map, probe its input", run, space, layers)
