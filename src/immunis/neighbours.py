"""ν: what neighbours read of labels from features, no row being a neighbour of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from immunis.errors import InputError
from immunis.lifting import unit_rows

SHARPNESS = (5.0, 20.0)  # a cosine of 0.5 to a row counts 12 and 22,000 times one of 0


def nu(features: Tensor, targets: Tensor, sharpness: Sequence[float] = SHARPNESS) -> Tensor:
    """Share of the targets' variance that a row's neighbours explain, differentiable in features.

    ``ν(Z,Y) = Σᵢ ỹᵢ·ŷᵢ / Σᵢ ‖ỹᵢ‖²`` with ``ŷᵢ = Σ_{j≠i} pᵢⱼỹⱼ``, ``pᵢⱼ ∝ exp(s·cos(zᵢ,zⱼ))`` and ỹ
    the targets about their mean (Nadaraya and Watson's smoother, each row left out of its own
    answer), the mean over the sharpnesses s. 1 where all that is near a row has its targets,
    −1/(n−1) where all rows are alike. Labels drawn at random are not explained, for any D, where ρ
    of n rows explains D/n of them.

    Args:
        features: (n, D), about the point that directions are to be seen from.
        targets: (n, C) real matrix, one-hot for classes; no gradient flows to it.
        sharpness: values of s; the larger, the fewer neighbours count.
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
    cosines = (rows @ rows.mT).masked_fill(itself, -torch.inf)
    weights = torch.stack([(s * cosines).softmax(1) for s in sharpness]).mean(0)
    return ((weights @ y) * y).sum() / variance
