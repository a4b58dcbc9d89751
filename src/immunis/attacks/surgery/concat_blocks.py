"""Probe the last blocks side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from immunis.attacks.contract import Arena, Attack, NotApplicableError, Point, Settings
from immunis.attacks.surgery.shared import choice, probe_on
from immunis.models.cut import Cut


def layers(cut: Cut) -> Sequence[str]:
    """Outputs of the last four stages."""
    return cut.stages[-4:]


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Probe the concatenated, standardised outputs of the last n stages."""
    names = arena.cut.stages[-settings["blocks"] :]
    parts = []
    for index in (0, 1):
        columns = []
        for name in names:
            fit = arena.cache[name][0][arena.rows[0]]
            deviation = fit.std(0)
            scale = np.where(deviation > 1e-12 * deviation.max(), deviation, np.inf)
            columns.append((arena.cache[name][index] - fit.mean(0)) / scale)
        parts.append(np.concatenate(columns, axis=1))
    return probe_on(arena, parts[0], parts[1], settings["probe"])


def space(arena: Arena) -> dict[str, Sequence[object]]:
    """Two to four blocks, with the probes."""
    blocks = tuple(range(2, len(layers(arena.cut)) + 1))
    if not blocks:
        raise NotApplicableError("the extractor has one stage only")
    return {"blocks": blocks, "probe": choice(arena)}


ATTACK = Attack("concat_blocks", "probes on the last blocks side by side", run, space, layers)
