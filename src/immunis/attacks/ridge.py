"""Linear probing in closed form: ridge regression, which no conditioning can slow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from immunis.attacks.base import Arena, Attack, Point, Settings, solve_flops
from immunis.attacks.bases import in_basis, lengths
from immunis.attacks.probing import one_point
from immunis.errors import InputError, NumericalError
from immunis.gram import Gram, gram_of
from immunis.scale import answer, unit


def ridge_probe(gram: Gram, ridge: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return weights (D×C) and bias (C) of ``min ‖Zw + b − Y‖² + λ‖w‖²``.

    ``w = (S_zz + λI)⁻¹S_zy`` from centred scatter, ``λ = ridge·tr(S_zz)/D``; ``b = ȳ − z̄ᵀw``.
    """
    if not 0 < ridge < math.inf:
        raise InputError(f"ridge must be positive and finite, got {ridge}.")
    (damped, e), (cross, f) = unit(gram.scatter), unit(gram.cross_scatter)
    size = damped.diagonal().mean()
    damped.diagonal().add_(ridge * size if size > 0 else 1.0)  # without features, w = 0
    solved, failed = torch.linalg.solve_ex(damped, cross)
    if int(failed):
        raise NumericalError(f"S + λI is singular with ridge {ridge:g}; raise it.")
    weights = answer(solved, f - e, torch.float64, "a weight of the ridge probe")
    return weights, gram.target_mean - gram.mean @ weights


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Solve the normal equations once."""
    features, meter = in_basis(arena, settings["basis"])
    weights, bias = ridge_probe(gram_of(features.z, features.targets()), settings["ridge"])
    flops = solve_flops(features.samples, features.dimension, features.outputs)
    return one_point(features, flops, lambda z: z.double() @ weights + bias, meter)


ATTACK = Attack(
    "ridge",
    "ridge regression in closed form",
    run,
    lambda arena: {"ridge": (1e-2, 1.0, 1e-4, 1e-6, 1e-9, 1e-12), "basis": lengths(arena)},
    closed_form=True,
)
