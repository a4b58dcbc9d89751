"""Linear probing in closed form: ridge regression, which no conditioning can slow."""

from __future__ import annotations

import torch
from torch import Tensor

from immunis.attacks.base import Arena, Attack, Meter, Point, Settings, solve_flops
from immunis.attacks.probing import one_point
from immunis.errors import InputError
from immunis.gram import Gram, gram_of


def ridge_probe(gram: Gram, ridge: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return weights (D×C) and bias (C) of ``min ‖Zw + b − Y‖² + λ‖w‖²``.

    ``w = (S_zz + λI)⁻¹S_zy`` from centred scatter, ``λ = ridge·tr(S_zz)/D``; ``b = ȳ − z̄ᵀw``.
    """
    if not ridge > 0:
        raise InputError(f"ridge must be positive, got {ridge}.")
    damped = gram.scatter.clone()
    damped.diagonal().add_(ridge * gram.scatter.diagonal().mean().clamp(min=1e-300))
    weights = torch.linalg.solve(damped, gram.cross_scatter)
    return weights, gram.target_mean - gram.mean @ weights


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Solve the normal equations once."""
    features, meter = arena.features(), Meter(arena)
    weights, bias = ridge_probe(gram_of(features.z, features.targets()), settings["ridge"])
    flops = solve_flops(features.samples, features.dimension, features.outputs)
    return one_point(features, flops, lambda z: z.double() @ weights + bias, meter)


ATTACK = Attack(
    "ridge",
    "ridge regression in closed form",
    run,
    lambda arena: {"ridge": (1e-2, 1.0, 1e-4, 1e-6, 1e-9)},
    closed_form=True,
)
