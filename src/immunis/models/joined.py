"""Anything that the verbs take for a model, as one module: matrices, layers, pairs and results."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from immunis.data.checks import real
from immunis.data.feed import run_model
from immunis.models.positions import channels_last, mask_of, pooled, tensor_of


class Joined(nn.Sequential):
    """An extractor and a head that reads the extractor's pooled output."""

    EXTRACTOR = "0."  # prefix of the extractor's parameter names

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the head's answers; channels are the dimension as wide as the head's input."""
        extractor, head = self
        found, wanted = tensor_of(run_model(extractor, inputs)), head.in_features
        second, last = found.shape[1] == wanted, found.shape[-1] == wanted
        place = last if second != last else channels_last(extractor, found)
        return head(pooled(found, place, mask_of(extractor, inputs)))


def extractor_of(module: nn.Module) -> Any:
    """Return the extractor of a pair, which is what is released of it; else the module itself."""
    return module[0] if isinstance(module, Joined) else module


def as_module(
    model: Any, head: str | None, outputs: int | None
) -> tuple[Any, str | None, int | None]:
    """Return a matrix, pair or result of ``immunize`` as one module, and where its head is."""
    if isinstance(model, np.ndarray):
        model = real(model)
    if isinstance(model, Tensor):
        layer = nn.Linear(*model.shape, bias=False, dtype=model.dtype)  # type: ignore[misc]
        with torch.no_grad():
            layer.weight.copy_(model.T)
        model = layer.eval()
    elif not isinstance(model, nn.Module) and hasattr(model, "model") and hasattr(model, "head"):
        inside = [n for n, m in model.model.named_modules() if m is model.head]
        model, head = (model.model, inside[0]) if inside else ((model.model, model.head), head)
    if isinstance(model, tuple) and len(model) == 2:
        model, head = Joined(*model), "1"
    elif isinstance(model, nn.Linear):  # an extractor; wrapped so that its layer has a name
        model, outputs = nn.Sequential(model), None
    else:
        return model, head, outputs
    model.training = any(part.training for part in model)
    return model, head, outputs
