"""Probe the last blocks side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from immunis.attacks.base import Arena, Attack, NotApplicableError, Point, Settings
from immunis.attacks.surgery import probe_on
from immunis.features import Cut


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
            train = arena.cache[name][0]
            scale = train.std(0) + 1e-12 * (1 + np.abs(train).max())
            columns.append((arena.cache[name][index] - train.mean(0)) / scale)
        parts.append(np.concatenate(columns, axis=1))
    return probe_on(arena, parts[0], parts[1], settings["probe"])


def space(arena: Arena) -> dict[str, Sequence[object]]:
    """Two to four blocks, with a linear and a non-linear probe."""
    blocks = tuple(range(2, len(layers(arena.cut)) + 1))
    if not blocks:
        raise NotApplicableError("the extractor has one stage only")
    return {"blocks": blocks, "probe": ("ridge", "mlp")}


ATTACK = Attack("concat_blocks", "probes on the last blocks side by side", run, space, layers)
