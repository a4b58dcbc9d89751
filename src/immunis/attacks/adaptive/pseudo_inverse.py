"""Start descent where the released last linear map says the answer should be."""

from functools import partial

import torch

from immunis.attacks.contract import Arena, Attack, Curve, Settings, before_last
from immunis.attacks.features import solve_flops
from immunis.attacks.learning import least_squares
from immunis.theory.gram import gram_of
from immunis.theory.probes import ridge_probe
from immunis.theory.steps import line_search


def run(arena: Arena, settings: Settings) -> Curve:
    """Fit a probe before the map, carry it through the map's pseudo-inverse, descend from there."""
    before = arena.features(f"{arena.last_linear}:in")
    weights, _ = ridge_probe(gram_of(before.z, before.targets()), settings["ridge"])
    solved = solve_flops(before.samples, before.dimension, before.outputs)
    start = torch.linalg.pinv(arena.cut.last_weights()[0].T) @ weights
    return least_squares(arena.features(), partial(line_search, start=start), spent=solved)


ATTACK = Attack(
    run, {"ridge": (1e-2, 1e-6)}, lambda cut: ("", *before_last(cut)), anticipated=True, place=6
)
