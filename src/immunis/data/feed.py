"""Hand inputs to a model in the dtype and the form that it takes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError, SettingsError
from immunis.data.text import is_packed, unpacked

POSITIONS = ("position_embeddings", "wpe")  # what transformers calls learned positions


def most_tokens(model: nn.Module) -> int | None:
    """Return how many tokens a model has learned positions for; None if it takes any number."""
    for name, part in model.named_modules():
        if isinstance(part, nn.Embedding) and name.rpartition(".")[2] in POSITIONS:
            unused = 0 if part.padding_idx is None else part.padding_idx + 1  # as in RoBERTa
            return part.num_embeddings - unused
    return None


def check_length(model: nn.Module, tokens: int) -> None:
    """Raise SettingsError if texts have more tokens than a model has positions for."""
    most = most_tokens(model)
    if most is not None and tokens > most:
        raise SettingsError(
            f"texts of up to {tokens} tokens came, and the model has positions for {most}. Set "
            f"max_length = {most} or less, for all tasks alike."
        )


def takes_mask(model: nn.Module) -> bool:
    """Return True if a model is called with an attention mask."""
    return "attention_mask" in inspect.signature(model.forward).parameters


def run_model(model: nn.Module, inputs: Tensor) -> Any:
    """Return a model's output for inputs moved to its device and, except token ids, its dtype.

    A model that takes a mask gets packed text (``data.text``) as ids and mask.
    """
    parameter = next(model.parameters(), torch.zeros(()))
    embeds = any(isinstance(module, nn.Embedding) for module in model.modules())
    tokens = embeds and inputs.dtype in (torch.int32, torch.int64)
    inputs = inputs.to(parameter.device, None if tokens else parameter.dtype)
    try:
        if tokens and is_packed(inputs) and takes_mask(model):
            padding = getattr(getattr(model, "config", None), "pad_token_id", None)
            ids, mask = unpacked(inputs, padding)
            check_length(model, ids.shape[1])
            return model(input_ids=ids, attention_mask=mask)
        return model(inputs)
    except IndexError as error:
        if inputs.is_floating_point() or not inputs.numel():
            raise
        raise InputError(
            f"token ids from {int(inputs.min())} to {int(inputs.max())}: {error}. Use the model's "
            "own tokenizer."
        ) from error
