"""Retrieval: how often the nearest other row, by angle between features, has the same class."""

from __future__ import annotations

import torch
from torch import Tensor

from immunis.theory.feature_maps import unit_rows

BLOCK = 1024  # rows compared with all others at a time


def retrieval(features: Tensor, labels: Tensor) -> float:
    """Return the accuracy of each row's nearest neighbour among the others, by cosine.

    >>> z = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 3.0], [-0.1, 1.0]])
    >>> retrieval(z, torch.tensor([0, 0, 1, 0]))
    0.5
    """
    rows = unit_rows(features).float()
    right = 0
    for start in range(0, len(rows), BLOCK):
        near = rows[start : start + BLOCK] @ rows.mT
        place = torch.arange(len(near))
        near[place, start + place] = -torch.inf  # a row is not its own neighbour
        right += int((labels[near.argmax(1)] == labels[start : start + BLOCK]).sum())
    return right / len(rows)
