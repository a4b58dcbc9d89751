"""A head that knows ImageNet's 1,000 classes, narrowed to the classes of a task."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from immunis.core.errors import InputError
from immunis.core.extras import need

CLASSES = 1000


def imagenet_rows(names: Sequence[str]) -> list[int]:
    """Return the outputs of an ImageNet network that stand for classes named by WordNet id.

    Raises:
        InputError: for a name that is none of ImageNet's, such as ``"goldfish"``.
        SettingsError: if timm, which knows their order, is not installed.
    """
    names_of_all = need("timm.data").ImageNetInfo("imagenet-1k").label_names()
    places = {name: row for row, name in enumerate(names_of_all)}
    missing = [name for name in names if name not in places]
    if missing:
        raise InputError(
            f"imagenet_head: class {missing[0]!r} is none of ImageNet's; expected WordNet ids such "
            "as 'n01443537'. Name the class folders so, or leave imagenet_head out."
        )
    return [places[name] for name in names]


def keep_outputs(model: nn.Module, rows: Sequence[int]) -> None:
    """Replace a network's head of 1,000 outputs by the same head with some of its rows.

    Raises:
        InputError: if the last linear layer does not have 1,000 outputs.
    """
    linear = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    if not linear or linear[-1][1].out_features != CLASSES:
        found = f"a head of {linear[-1][1].out_features}" if linear else "no linear head"
        raise InputError(f"the network has {found}; expected one with {CLASSES:,} outputs.")
    name, head = linear[-1]
    narrow = nn.Linear(head.in_features, len(rows), head.bias is not None, dtype=head.weight.dtype)
    with torch.no_grad():
        narrow.weight.copy_(head.weight[list(rows)])
        if head.bias is not None:
            narrow.bias.copy_(head.bias[list(rows)])
    model.set_submodule(name, narrow)
    if hasattr(model, "num_classes"):
        model.num_classes = len(rows)  # type: ignore[assignment]
