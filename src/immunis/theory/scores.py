"""How well predictions answer a task: accuracy or R²."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def score(predictions: Tensor, labels: Tensor, kind: str) -> float:
    """Accuracy of the largest output, or R²; predictions that are not finite score nothing."""
    if kind == "classification":
        if not bool(torch.isfinite(predictions).all()):
            return 0.0
        return float((predictions.argmax(1) == labels).double().mean())
    errors = (predictions.double() - labels).square().sum()
    spread = (labels - labels.mean(0)).square().sum().clamp(min=1e-300)
    value = float(1 - errors / spread)
    return value if np.isfinite(value) else float("-inf")
