"""What layer surgery shares: the usual probes, pointed at other features."""

from __future__ import annotations

import dataclasses

import numpy as np

from immunis.attacks.contract import Arena, Point
from immunis.attacks.probes import (
    adam,
    batchnorm_probe,
    gd_constant,
    gd_line_search,
    kernel,
    knn,
    lbfgs,
    logistic,
    mlp,
    ridge,
    sgd,
    standardise,
    whiten,
)
from immunis.attacks.search import search

PROBES = {
    module.ATTACK.name: module.ATTACK
    for module in (
        ridge,
        mlp,
        knn,
        adam,
        gd_line_search,
        gd_constant,
        sgd,
        lbfgs,
        logistic,
        standardise,
        whiten,
        batchnorm_probe,
        kernel,
    )
}
SHORT = 3


def choice(arena: Arena) -> tuple[str, ...]:
    """Every probe where the budget is large; the three most telling ones otherwise."""
    names = tuple(PROBES)
    usable = names if arena.kind == "classification" else tuple(n for n in names if n != "logistic")
    return usable if arena.patient else usable[:SHORT]


def probe_on(arena: Arena, train: np.ndarray, test: np.ndarray, probe: str) -> list[Point]:
    """Run one of the probes, over its own grid, on the given features instead."""
    elsewhere = dataclasses.replace(arena, cache={"": (train, test)})
    return search(PROBES[probe], elsewhere).points
