"""Start descent where the released last linear map says the answer should be."""

from functools import partial

import torch

from immunis.attacks.contract import Arena, Attack, Curve, Settings, before_last
from immunis.attacks.curves import least_squares, solve_ridge
from immunis.theory.descent import line_search


def run(arena: Arena, settings: Settings) -> Curve:
    """Fit a probe before the map, carry it through the map's pseudo-inverse, descend from there."""
    before = arena.features(f"{arena.last_linear}:in")
    weights, _, solved = solve_ridge(before, settings["ridge"])
    start = torch.linalg.pinv(arena.cut.last_weights()[0].T) @ weights
    return least_squares(arena.features(), partial(line_search, start=start), spent=solved)


ATTACK = Attack(run, {"ridge": (1e-2, 1e-6)}, lambda cut: ("", *before_last(cut)), place=6)
