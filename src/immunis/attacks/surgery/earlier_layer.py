"""Probe an earlier layer: a defence of the last one may have left it untouched."""

from __future__ import annotations

from collections.abc import Sequence

from immunis.attacks.contract import Arena, Attack, NotApplicableError, Point, Settings
from immunis.attacks.surgery.shared import choice, probe_on
from immunis.models.cut import Cut


def layers(cut: Cut) -> Sequence[str]:
    """Outputs of every stage but the last."""
    return cut.stages[:-1]


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Probe one stage's pooled output."""
    return probe_on(arena, *arena.cache[settings["layer"]], settings["probe"])


def space(arena: Arena) -> dict[str, Sequence[str]]:
    """Every earlier stage, with the probes."""
    if not layers(arena.cut):
        raise NotApplicableError("the extractor has one stage only")
    return {"layer": layers(arena.cut), "probe": choice(arena)}


ATTACK = Attack("earlier_layer", "the probes on every earlier stage", run, space, layers)
