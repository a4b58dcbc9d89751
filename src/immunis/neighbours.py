"""ν: what neighbours read of labels from features, no row being a neighbour of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from immunis.errors import InputError
from immunis.lifting import unit_rows

SHARPNESS = 10.0  # of the weights: a row at a cosine of 0.7 to another counts e⁷ times one at 0


def nu(features: Tensor, targets: Tensor, sharpness: float = SHARPNESS) -> Tensor:
    """Share of the targets' variance that a row's neighbours explain, differentiable in features.

    ``ν(Z,Y) = Σᵢ ỹᵢ·ŷᵢ / Σᵢ ‖ỹᵢ‖²`` with ``ŷᵢ = Σ_{j≠i} pᵢⱼỹⱼ``, ``pᵢⱼ ∝ exp(s·cos(zᵢ,zⱼ))`` and ỹ
    the targets about their mean (Nadaraya and Watson's smoother, each row left out of its own
    answer). 1 where all that is near a row has its targets, −1/(n−1) where all rows are alike. What
    ρ of n rows in D dimensions explains of labels drawn at random, D/n, ν does not, for any D.

    Args:
        features: (n, D), about the point that directions are to be seen from.
        targets: (n, C) real matrix, one-hot for classes; no gradient flows to it.
        sharpness: s; the larger, the fewer neighbours count.
    """
    rows, y = unit_rows(features), targets.detach().to(features.device, torch.float64)
    if y.ndim != 2 or len(y) != len(rows) or len(rows) < 2:
        raise InputError(
            f"ν needs features (n, D) and targets (n, C) of two rows or more; got "
            f"{tuple(features.shape)} and {tuple(targets.shape)}."
        )
    y = y - y.mean(0)
    variance = y.square().sum()
    if not variance > 0:
        raise InputError(
            "the labels are constant, so no share of them can be explained; ν needs at least two "
            "classes (or two target values) in every batch."
        )
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    weights = (sharpness * rows @ rows.mT).masked_fill(itself, -torch.inf).softmax(1)
    return ((weights @ y) * y).sum() / variance
