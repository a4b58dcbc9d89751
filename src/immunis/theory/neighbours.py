"""ν: what neighbours read of labels from features, no row being a neighbour of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from immunis.core.errors import InputError, NumericalError

SHARPNESS = (5.0, 20.0)  # a cosine of 0.5 to a row counts 12 and 22,000 times one of 0


def nu(features: Tensor, targets: Tensor, sharpness: Sequence[float] = SHARPNESS) -> Tensor:
    """Share of the targets' variance that a row's neighbours explain, differentiable in features.

    ``ν(Z,Y) = Σᵢ ỹᵢ·ŷᵢ / Σᵢ ‖ỹᵢ‖²`` with ``ŷᵢ = Σ_{j≠i} pᵢⱼỹⱼ``, ``pᵢⱼ ∝ exp(s·zᵢ·zⱼ/D)`` and ỹ the
    targets about their mean (Nadaraya and Watson's smoother, each row left out of its own answer),
    the mean over the sharpnesses s. 1 where all that is near a row has its targets, −1/(n−1) where
    all rows are alike, and less where neighbours differ more often than by chance. Labels drawn at
    random are not explained, for any D, where ρ of n rows explains D/n of them.

    Args:
        features: (n, D), rows of length √D or less (``feature_maps.even``), so that zᵢ·zⱼ/D
            is their cosine.
        targets: (n, C) real matrix, one-hot for classes; no gradient flows to it.
        sharpness: values of s, above 0; the larger, the fewer neighbours count.

    Raises:
        InputError: for shapes that do not fit, or constant targets.
        NumericalError: where features or targets are not finite.
    """
    if features.ndim != 2 or targets.ndim != 2 or not len(features) == len(targets) > 1:
        raise InputError(
            f"ν needs features (n, D) and targets (n, C) of two rows or more; got "
            f"{tuple(features.shape)} and {tuple(targets.shape)}."
        )
    if not sharpness or not all(s > 0 for s in sharpness):
        raise InputError(f"ν needs one sharpness or more, above 0; got {sharpness}.")
    rows, y = features.double(), targets.detach().to(features.device, torch.float64)
    y = y - y.mean(0)
    variance = y.square().sum()
    if not bool((rows.detach().sum() + variance).isfinite()):
        raise NumericalError("ν: features or targets hold NaN or infinities; lower the rate.")
    if not variance > 0:
        raise InputError(
            "the labels are constant, so no share of them can be explained; ν needs at least two "
            "classes (or two target values) in every batch."
        )
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    cosines = (rows @ rows.mT / max(rows.shape[1], 1)).masked_fill(itself, -torch.inf)
    weights = torch.stack([(s * cosines).softmax(1) for s in sharpness]).mean(0)
    return ((weights @ y) * y).sum() / variance
