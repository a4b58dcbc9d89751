"""Labels as the matrix that a probe fits."""

from __future__ import annotations

import torch
from torch import Tensor


def encode(labels: Tensor, kind: str, outputs: int) -> Tensor:
    """Labels as a float64 matrix: one column per class, or the targets as they are."""
    if kind == "regression":
        return labels.to(torch.float64)
    return torch.nn.functional.one_hot(labels.to(torch.int64), outputs).to(torch.float64)
