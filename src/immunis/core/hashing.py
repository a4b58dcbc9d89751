"""Hashes of models: names, types, shapes and every bit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError


def state_digest(model: nn.Module) -> str:
    """Return the hash of a model's whole state."""
    return tensors_digest(model.state_dict())


def tensors_digest(state: Mapping[str, Any]) -> str:
    """Return the hash of named tensors: names, types, shapes, and every bit."""
    total = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        if not isinstance(tensor, Tensor):  # from a module's get_extra_state
            if not _is_plain(tensor):
                raise InputError(
                    f"the model's state holds a {type(tensor).__name__} ({name}), which cannot be "
                    "saved. Leave it out of state_dict()."
                )
            total.update(f"{name} {tensor!r}\n".encode())
            continue
        raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(raw.data)
    return total.hexdigest()


def _is_plain(value: Any) -> bool:
    """Return True for numbers, text, and lists and mappings of them."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float)
