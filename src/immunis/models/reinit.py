"""Fresh parameters: the untrained model is the control of every audit."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from immunis.models.cut import Cut


def reinitialise(module: nn.Module, seed: int) -> None:
    """Draw every parameter anew, as the layers themselves do at construction.

    Parameters that no layer draws by itself get what such parameters start with: vectors called
    weight, scale or gamma ones, vectors called bias or beta zeros, all others (class tokens,
    position embeddings) a normal distribution of deviation 0.02.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        drawn: set[int] = set()
        for part in module.modules():
            reset: Any = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
                drawn |= {id(p) for p in part.parameters(recurse=False)}
        for name, parameter in module.named_parameters():
            if id(parameter) in drawn:
                continue
            word = name.rsplit(".", 1)[-1]
            if parameter.ndim <= 1 and word in ("weight", "scale", "gamma"):
                parameter.fill_(1.0)
            elif parameter.ndim <= 1 and word in ("bias", "beta"):
                parameter.zero_()
            else:
                parameter.normal_(std=0.02)


def untrained(source: Cut, seed: int) -> Cut:
    """Return the same architecture with fresh parameters: the control of every audit."""
    fresh = source.copy()
    reinitialise(fresh.model, seed)
    fresh.model.eval()
    return fresh
