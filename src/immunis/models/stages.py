"""The stages of a model: the blocks that produce its features, in the order they run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.models.cut import Cut, tensor_of

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def stages_of(
    whole: Cut, example: Tensor
) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """Return stages, the normalisation layers behind the last one, and stages with tokens first.

    Stages are the top-level blocks with parameters that the features depend on, except the head and
    normalisation. A single block (a wrapped backbone) and one that is never called itself are
    replaced by their own blocks. If there are fewer than four, containers are opened, and modules
    that hold a list of blocks (a transformer's encoder). Parallel branches stay one stage.
    """
    model, head = whole.model, whole.head_layer
    of_head = set() if head is None else {id(p) for p in head.parameters()}

    def has_own(module: nn.Module, recurse: bool = True) -> bool:
        return bool({id(p) for p in module.parameters(recurse)} - of_head)

    def inside(name: str) -> list[str]:
        children = model.get_submodule(name).named_children()
        return [f"{name}.{n}" if name else n for n, child in children if has_own(child)]

    def only_norms(name: str) -> bool:
        parts = model.get_submodule(name).modules()
        return all(is_norm(part) for part in parts if has_own(part, recurse=False))

    def features() -> Tensor:
        return whole.features(example)

    def run(names: list[str]) -> dict[str, Any]:
        """Return the output of each block; open blocks that are never called themselves."""
        while len(ran := whole.capture(example, names)) < len(names):
            parts = [p for name in names for p in ([name] if name in ran else inside(name))]
            once = {id(model.get_submodule(part)): part for part in reversed(parts)}
            names = list(reversed(once.values()))  # one name per module
        return ran

    def in_line(names: list[str]) -> bool:
        """Return True if the last block depends on each of the others: no parallel branches."""
        used = [name for name in run(names) if feeds(model, name, features)]

        def last() -> Tensor:
            return tensor_of(whole.capture(example, (used[-1],))[used[-1]])

        return all(feeds(model, name, last) for name in used[:-1])

    def holds_blocks(part: nn.Module) -> bool:
        """Return True for a list of blocks, or a sequence of modules with parts."""
        if isinstance(part, nn.Sequential):
            return sum(len(list(child.children())) > 0 for child in part) > 1
        return isinstance(part, nn.ModuleList) and sum(map(has_own, part.children())) > 1

    def opened(name: str) -> list[str]:
        module, inner = model.get_submodule(name), inside(name)
        if isinstance(module, nn.ModuleList | nn.Sequential):
            with_head = of_head & {id(p) for p in module.parameters()}
            return inner if len(inner) > 1 or with_head else [name]
        if not any(map(holds_blocks, module.modules())) or not in_line(inner):
            return [name]
        return [part for child in inner for part in opened(child)]

    names = inner = inside("")
    while len(inner) == 1:
        inner = inside(inner[0])
    if len(names) == 1 and inner and in_line(inner):
        names = inner
    if sum(not only_norms(name) for name in names) < 4:
        names = [part for name in names for part in opened(name)]
    ran = run(names)
    alone = whole.capture(example[:1], list(ran))
    several, below = len(example) > 1, parameters_below(whole, example)
    place = {n: _samples_at(z, alone.get(n)) if several else 0 for n, z in ran.items()}

    def used(name: str) -> bool:
        own = {id(p) for p in model.get_submodule(name).parameters()}
        return bool(below & own) or feeds(model, name, features)

    names = [name for name in ran if place[name] is not None and used(name)]
    stages = [name for name in names if not only_norms(name)]
    behind = names[names.index(stages[-1]) + 1 :] if stages else []
    return tuple(stages), tuple(behind), frozenset(n for n in names if place[n] == 1)


def is_norm(module: nn.Module) -> bool:
    """Return True if a module only normalises: by its type, or by its name and flat parameters."""
    flat = all(p.squeeze().ndim <= 1 for p in module.parameters())
    return isinstance(module, NORMS) or (flat and "norm" in type(module).__name__.lower())


def _samples_at(several: Any, one: Any) -> int | None:
    """Return the dimension of the samples, from outputs for several and for one; None if none."""
    try:
        shapes = tensor_of(several).shape, tensor_of(one).shape
    except InputError:
        return 0  # not a tensor: assume the usual place
    if len(shapes[0]) != len(shapes[1]):
        return None
    moved = [i for i, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b]
    return moved[0] if moved in ([0], [1]) and shapes[1][moved[0]] == 1 else None


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
