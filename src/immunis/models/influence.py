"""Which layers and parameters have a say in what a model gives: tried with NaN, and by autograd."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from immunis.models.cut import Cut


@torch.no_grad()
def feeds(model: nn.Module, name: str, read: Callable[[], Tensor]) -> bool:
    """Return True if NaN in a block's output reaches ``read()``, or if that cannot be tried."""

    def ink(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return tuple(torch.full_like(part, torch.nan) for part in output)
        return torch.full_like(output, torch.nan)

    handle = model.get_submodule(name).register_forward_hook(ink)
    try:
        return bool(read().isnan().any())
    except Exception:  # an output of another kind, or a model that refuses NaN
        return True
    finally:
        handle.remove()


def parameters_below(whole: Cut, example: Tensor) -> set[int]:
    """Return ids of the parameters that autograd finds below the features; none if it fails."""
    try:
        with _differentiable(p for p in whole.model.parameters() if p.is_floating_point()):
            return _reached(whole.features(example))
    except RuntimeError:  # tensors of inference mode, for one
        return set()


def bypassed(model: nn.Module, name: str, inputs: Tensor, read: Callable[[Tensor], Tensor]) -> bool:
    """Return True if autograd finds a path from the input to ``read(inputs)`` around a layer."""
    given: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_pre_hook(
        lambda _, arguments: given.extend(arguments[:1])
    )
    leaves = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    if inputs.is_floating_point():
        inputs = inputs.detach().clone()
        leaves = [inputs]
    try:
        with _differentiable(leaves):
            answers = read(inputs)
    except RuntimeError:  # tensors of inference mode, for one
        return False
    finally:
        handle.remove()
    ends = {z.grad_fn for z in given}
    if not ends or None in ends:
        return False
    return bool(_reached(answers, ends) & {id(leaf) for leaf in leaves})


@contextmanager
def _differentiable(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Enable gradients, also of frozen tensors; freeze those again at the end."""
    frozen = [tensor for tensor in tensors if not tensor.requires_grad]
    try:
        for tensor in frozen:
            tensor.requires_grad_(True)
        with torch.enable_grad():
            yield
    finally:
        for tensor in frozen:
            tensor.requires_grad_(False)


def _reached(value: Tensor, ends: Collection[Any] = ()) -> set[int]:
    """Return ids of the leaves that autograd finds below a value, stopping at some nodes."""
    todo, seen, found = [value.grad_fn], set(ends), set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found.add(id(getattr(node, "variable", None)))
            todo += [below for below, _ in node.next_functions]
    return found
