"""What layer surgery shares: the usual probes, pointed at other features."""

from __future__ import annotations

import dataclasses

import numpy as np

from immunis.attacks import adam, knn, mlp, ridge
from immunis.attacks.base import Arena, Point
from immunis.attacks.search import search

PROBES = {module.ATTACK.name: module.ATTACK for module in (ridge, adam, mlp, knn)}
CHOICE = ("ridge", "adam", "mlp", "knn")


def probe_on(arena: Arena, train: np.ndarray, test: np.ndarray, probe: str) -> list[Point]:
    """Run one of the probes, over its own grid, on the given features instead."""
    elsewhere = dataclasses.replace(arena, cache={"": (train, test)})
    return search(PROBES[probe], elsewhere).points
