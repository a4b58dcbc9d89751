"""The stages of a model: the blocks that its features come through, in the order they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from immunis.errors import InputError
from immunis.outputs import tensor_of

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class Whole(Protocol):
    """A model whose head is known (``immunis.features.Cut``)."""

    @property
    def model(self) -> nn.Module:
        """The model itself."""

    @property
    def head_layer(self) -> nn.Linear | None:
        """The linear head."""

    def read(self, inputs: Tensor, layers: Sequence[str] = ("",)) -> list[Tensor]:
        """Pooled features at each layer."""

    def capture(self, inputs: Tensor, layers: Sequence[str]) -> dict[str, Any]:
        """What those of the layers gave that ran, in the order they ended."""


def stages_of(whole: Whole, example: Tensor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Top-level blocks with parameters that the features come through, in the order they run.

    Where there are few, containers are opened, and so is what holds a list of blocks (the encoder
    of a transformer). What holds nothing but the head is no stage. Bare normalisation layers are
    none either; those behind the last stage are returned beside it, to be trained with it.
    """
    model = whole.model
    of_head = set() if whole.head_layer is None else {id(p) for p in whole.head_layer.parameters()}

    def inside(module: nn.Module, prefix: str) -> list[str]:
        return [
            f"{prefix}{name}"
            for name, child in module.named_children()
            if {id(p) for p in child.parameters()} - of_head
        ]

    def only_norms(name: str) -> bool:
        own = [
            part
            for part in model.get_submodule(name).modules()
            if {id(p) for p in part.parameters(recurse=False)} - of_head
        ]
        return all(isinstance(part, NORMS) for part in own)

    def opened(name: str) -> list[str]:
        module = model.get_submodule(name)
        inner = inside(module, f"{name}.")
        if isinstance(module, nn.ModuleList | nn.Sequential):
            return inner if len(inner) > 1 else [name]
        lists = (part for part in module.modules() if isinstance(part, nn.ModuleList))
        many = any(len(inside(part, "")) > 1 for part in lists)
        return [part for child in inner for part in opened(child)] if many else [name]

    names = inside(model, "")
    if sum(not only_norms(name) for name in names) < 4:
        names = [part for name in names for part in opened(name)]
    ran = whole.capture(example, names)
    through = _through(whole, example)
    names = [
        name
        for name, output in ran.items()
        if _follows(output, example)
        and (
            through & {id(p) for p in model.get_submodule(name).parameters()}
            or _feeds(whole, example, name)
        )
    ]
    stages = [name for name in names if not only_norms(name)]
    behind = names[names.index(stages[-1]) + 1 :] if stages else []
    return tuple(stages), tuple(behind)


def _follows(output: Any, example: Tensor) -> bool:
    """Whether an output has a row for each input, as far as can be told."""
    try:
        return tensor_of(output).shape[:1] == example.shape[:1]
    except InputError:
        return True


def _through(whole: Whole, example: Tensor) -> set[int]:
    """Identities of the parameters that autograd finds below the features; none where it fails."""
    frozen = [p for p in whole.model.parameters() if p.is_floating_point() and not p.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with torch.enable_grad():
            (features,) = whole.read(example)
        todo, seen, found = [features.grad_fn], set(), set()
        while todo:
            node = todo.pop()
            if node is not None and node not in seen:
                seen.add(node)
                found.add(id(getattr(node, "variable", None)))
                todo += [below for below, _ in node.next_functions]
        return found
    except RuntimeError:  # tensors of inference mode, for one
        return set()
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _feeds(whole: Whole, example: Tensor, name: str) -> bool:
    """Whether features turn NaN with what a block gives; True where that cannot be tried."""

    def ink(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return tuple(torch.full_like(part, torch.nan) for part in output)
        return torch.full_like(output, torch.nan)

    handle = whole.model.get_submodule(name).register_forward_hook(ink)
    try:
        return bool(whole.read(example)[0].isnan().any())
    except Exception:  # an output of another kind, or a model that refuses NaN in its own way
        return True
    finally:
        handle.remove()
