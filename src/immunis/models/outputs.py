"""What goes into a model and what comes out: fitting inputs, the tensor in an output, pooling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError


def fitting(model: nn.Module, inputs: Tensor) -> Tensor:
    """Inputs on the model's device and in its dtype; whole numbers stay so for an embedding."""
    parameter = next(model.parameters(), torch.zeros(()))
    words = any(isinstance(module, nn.Embedding) for module in model.modules())
    if words and inputs.dtype in (torch.int32, torch.int64):
        return inputs.to(parameter.device)
    return inputs.to(parameter.device, parameter.dtype)


def first_input(given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The first of a module's inputs, however it was called; None for none."""
    return next(iter((*given, *named.values())), None)


@contextmanager
def known_words(*inputs: Tensor) -> Iterator[None]:
    """Say of whole numbers that an embedding does not know which they were."""
    try:
        yield
    except IndexError as error:
        words = [x for x in inputs if not x.is_floating_point() and x.numel()]
        if not words:
            raise
        least, most = min(int(x.min()) for x in words), max(int(x.max()) for x in words)
        raise InputError(
            f"token ids from {least} to {most}: {error}. Use the model's own tokenizer."
        ) from error


def tensor_of(output: Any) -> Tensor:
    """The tensor in a model's output: itself, a pooled output, or the last hidden state."""
    if isinstance(output, tuple | list) and output:
        output = output[0]
    if isinstance(output, Tensor):
        return output
    for key in ("pooler_output", "last_hidden_state", "logits"):
        found = output.get(key) if isinstance(output, Mapping) else getattr(output, key, None)
        if found is not None:
            return found
    raise InputError(f"the model returns {type(output).__name__}; expected a tensor of features.")


def logits_of(output: Any) -> Tensor:
    """A model's answers: its logits where it names them, else the tensor it returns."""
    named = output.get("logits") if isinstance(output, Mapping) else None
    named = getattr(output, "logits", named)
    return tensor_of(output) if named is None else named


def channels_last(layer: nn.Module, output: Tensor) -> bool | None:
    """Where a layer puts its channels, as its parts' widths say; None where they do not.

    Convolutions and BatchNorm have them second, linear layers and LayerNorm last.
    """
    if output.ndim not in (3, 4):
        return None
    parts, flat = list(layer.modules()), output.ndim == 3  # of Conv2d what is flat is tokens
    second = {m.out_channels for m in parts if isinstance(m, nn.Conv1d if flat else nn.Conv2d)}
    norm = nn.BatchNorm1d if flat else nn.BatchNorm2d
    second |= {m.num_features for m in parts if isinstance(m, norm)}
    last = {m.out_features for m in parts if isinstance(m, nn.Linear)}
    last |= {m.normalized_shape[-1] for m in parts if isinstance(m, nn.LayerNorm)}
    is_second, is_last = output.shape[1] in second, output.shape[-1] in last
    return is_last if is_second != is_last else None


def pooled(features: Tensor, channels_last: bool | None = None) -> Tensor:
    """Mean over positions or tokens; (n, D) stays.

    Channels come last or not, as said; else first in (n, C, H, W) and last in (n, T, C).
    """
    last = features.ndim == 3 if channels_last is None else channels_last
    if features.ndim == 4:
        return features.mean((1, 2) if last else (2, 3))
    if features.ndim == 3:
        return features.mean(1 if last else 2)
    if features.ndim != 2:
        raise InputError(
            f"features have shape {tuple(features.shape)}; no pooling rule fits. Means are taken "
            "over the positions of (n, C, H, W) and (n, H, W, C) and the tokens of (n, T, C); "
            "(n, D) stays. Wrap the model so that it pools others itself."
        )
    return features
