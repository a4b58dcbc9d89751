"""What a layer gives, read as features: positions or tokens averaged, all kept, or on a grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.data.feed import takes_mask
from immunis.data.text import is_packed

MAPS, FIRST, GRID = ":maps", ":first", ":grid"  # behind a stage's name: how to read its positions
CELLS, SPECIAL = 2, 4  # cells of a grid along a side; most tokens that stand before an image's


def mask_of(model: nn.Module, inputs: Tensor) -> Tensor | None:
    """Return the mask (n, T) of packed text for a model that has a use for it, else None."""
    if not is_packed(inputs) or not any(map(takes_mask, model.modules())):
        return None
    return inputs[:, 1]


def tensor_of(output: Any) -> Tensor:
    """Return the tensor in a model's output: itself, the pooled output or last hidden state."""
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
    """Return the logits in a model's output, or its tensor if none is named so."""
    named = output.get("logits") if isinstance(output, Mapping) else None
    named = getattr(output, "logits", named)
    return tensor_of(output) if named is None else named


def channels_last(layer: nn.Module, output: Tensor) -> bool | None:
    """Return whether a layer's output has its channels last, by its parts' widths; None if unclear.

    Convolutions and BatchNorm have them second, linear layers and LayerNorm last.
    """
    if output.ndim not in (3, 4):
        return None
    parts, flat = list(layer.modules()), output.ndim == 3  # flat output of Conv2d is tokens
    second = {m.out_channels for m in parts if isinstance(m, nn.Conv1d if flat else nn.Conv2d)}
    norm = nn.BatchNorm1d if flat else nn.BatchNorm2d
    second |= {m.num_features for m in parts if isinstance(m, norm)}
    last = {m.out_features for m in parts if isinstance(m, nn.Linear)}
    last |= {m.normalized_shape[-1] for m in parts if isinstance(m, nn.LayerNorm)}
    is_second, is_last = output.shape[1] in second, output.shape[-1] in last
    return is_last if is_second != is_last else None


def pooled(features: Tensor, last: bool | None = None, mask: Tensor | None = None) -> Tensor:
    """Return features averaged over positions or tokens: (n, D).

    ``last`` says whether channels come last; None means (n, C, H, W) and (n, T, C). Only tokens
    that ``mask`` (n, T) keeps count; the model may have cut columns off that it masks everywhere.
    """
    last = features.ndim == 3 if last is None else last
    if features.ndim == 3 and mask is not None:
        tokens = features if last else features.mT
        kept, count = mask[:, : tokens.shape[1]], tokens.shape[1]
        if kept.shape != tokens.shape[:2] or bool(mask[:, count:].any()):
            raise InputError(
                f"features have shape {tuple(features.shape)} for masks of {mask.shape[1]} tokens; "
                "expected a row for each token. Wrap the model so that it pools them itself."
            )
        kept = kept.to(tokens.device, torch.promote_types(tokens.dtype, torch.float32))
        share = (kept / kept.sum(1, keepdim=True)).to(tokens)
        return (tokens * share[..., None]).sum(1)
    if features.ndim == 4:
        return features.mean((1, 2) if last else (2, 3))
    if features.ndim == 3:
        return features.mean(1 if last else 2)
    if features.ndim != 2:
        raise InputError(
            f"features have shape {tuple(features.shape)}; expected (n, D), (n, T, C), (n, C, H, "
            "W) or (n, H, W, C). Wrap the model so that it pools its features itself."
        )
    return features


def all_positions(found: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return all positions or tokens of an output with its channels last: (n, T, C).

    Of text, tokens that ``mask`` (n, T) drops are zero.
    """
    found = found.reshape(len(found), -1, found.shape[-1])
    if mask is None or found.shape[1] > mask.shape[1]:
        return found
    found = nn.functional.pad(found, (0, 0, 0, mask.shape[1] - found.shape[1]))
    return found * mask[..., None].to(found)


Borders = tuple[float, float]  # where a grid is cut, as shares of the places for a cut


def on_grid(found: Tensor, mask: Tensor | None = None, borders: Borders | None = None) -> Tensor:
    """Return means of an output with its channels last over 2×2 cells, in one row a sample.

    The cells are even, or cut at ``borders``: from behind the first row to before the last.
    Of an image's tokens, those before the square of patches are kept beside the cells. Of other
    tokens the mean and the first are kept: their places have no common meaning.
    """
    if found.ndim == 2:
        return found
    front = found[:, :0]
    if found.ndim == 3:
        side = math.isqrt(found.shape[1])
        special = found.shape[1] - side * side
        if mask is not None or side < CELLS or special > SPECIAL:
            found = all_positions(found, mask)
            return torch.cat([pooled(found, True, mask), found[:, 0]], 1)
        front, patches = found[:, :special], found[:, special:]
        found = patches.unflatten(1, (side, side))
    maps = found.movedim(-1, 1)
    if borders is None:
        cells = [min(CELLS, size) for size in maps.shape[2:]]
        grid = nn.functional.adaptive_avg_pool2d(maps, cells)  # type: ignore[arg-type]
        return torch.cat([front.flatten(1), grid.flatten(1)], 1)
    row, column = (
        1 + int(share * (size - 1)) for share, size in zip(borders, maps.shape[2:], strict=True)
    )
    parts = [
        part for rows in maps.tensor_split([row], 2) for part in rows.tensor_split([column], 3)
    ]
    return torch.cat([front.flatten(1), *(p.mean((2, 3)) for p in parts if p.numel())], 1)
