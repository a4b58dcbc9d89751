"""Ridge regression in closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from immunis.core.errors import InputError, NumericalError
from immunis.theory.gram import Gram
from immunis.theory.scale import answer, unit


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
