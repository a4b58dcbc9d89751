"""Linear probing in closed form: ridge regression, which no conditioning can slow."""

from __future__ import annotations

import torch
from torch import Tensor

from immunis.errors import InputError
from immunis.gram import Gram


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
