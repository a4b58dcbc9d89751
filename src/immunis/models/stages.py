"""The stages of a model: the blocks that its features come through, in the order they run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.models.outputs import tensor_of

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class Whole(Protocol):
    """A model whose head is known (``immunis.models.cut.Cut``)."""

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


def stages_of(
    whole: Whole, example: Tensor
) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """Top-level blocks with parameters that the features come through, in the order they run.

    Where there is but one (a backbone that is wrapped), its own blocks are taken. Where there are
    few, containers are opened, and so is what holds a list of blocks (the encoder of a
    transformer), or is never called itself while its parts are. Nothing is opened whose parts do
    not follow one another (branches side by side). What holds nothing but the head is no stage.
    Bare normalisation layers are none either; those behind the last stage are returned beside it,
    to be trained with it, and then the names of those stages whose samples come second.
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
        return all(is_norm(part) for part in own)

    def features() -> Tensor:
        return whole.read(example)[0]

    def in_line(parts: list[str]) -> bool:
        """Whether the last of them is given what each of the others gave.

        That of branches side by side is not, nor a block's shortcut, nor what such runs beside.
        """
        ran = whole.capture(example, parts)
        while lists := {n: inside(model.get_submodule(n), f"{n}.") for n in parts if n not in ran}:
            parts = [part for name in parts for part in lists.get(name, [name])]
            ran = whole.capture(example, parts)
        used = [part for part in ran if feeds(model, part, features)]

        def last() -> Tensor:
            return tensor_of(whole.capture(example, (used[-1],))[used[-1]])

        return all(feeds(model, part, last) for part in used[:-1])

    def opened(name: str) -> list[str]:
        module = model.get_submodule(name)
        inner = inside(module, f"{name}.")
        if isinstance(module, nn.ModuleList | nn.Sequential):
            with_head = of_head & {id(p) for p in module.parameters()}
            return inner if len(inner) > 1 or with_head else [name]
        if not any(blocks(part) for part in module.modules()) or not in_line(inner):
            return [name]
        return [part for child in inner for part in opened(child)]

    def blocks(part: nn.Module) -> bool:
        """Whether it is a list of blocks, or a sequence of what has parts itself."""
        if isinstance(part, nn.Sequential):
            return sum(len(list(child.children())) > 0 for child in part) > 1
        return isinstance(part, nn.ModuleList) and len(inside(part, "")) > 1

    names = inner = inside(model, "")
    while len(inner) == 1:
        inner = inside(model.get_submodule(inner[0]), f"{inner[0]}.")
    if len(names) == 1 and inner and in_line(inner):
        names = inner
    if sum(not only_norms(name) for name in names) < 4:
        names = [part for name in names for part in opened(name)]
    ran = whole.capture(example, names)
    while unopened := {n: inside(model.get_submodule(n), f"{n}.") for n in names if n not in ran}:
        parts = [part for name in names for part in unopened.get(name, [name])]
        once = {id(model.get_submodule(part)): part for part in reversed(parts)}  # of two names one
        names = list(reversed(once.values()))
        ran = whole.capture(example, names)
    through = parameters_below(whole, example)
    alone = whole.capture(example[:1], names)
    several = len(example) > 1
    place = {n: _samples(z, alone.get(n)) if several else 0 for n, z in ran.items()}
    names = [
        name
        for name in ran
        if place[name] is not None
        and (
            through & {id(p) for p in model.get_submodule(name).parameters()}
            or feeds(model, name, features)
        )
    ]
    stages = [name for name in names if not only_norms(name)]
    behind = names[names.index(stages[-1]) + 1 :] if stages else []
    return tuple(stages), tuple(behind), frozenset(n for n in names if place[n] == 1)


def is_norm(module: nn.Module) -> bool:
    """Whether a module only normalises: torch's own, or by its name and its flat parameters.

    transformers and timm have classes of their own (``LlamaRMSNorm``, ``EvoNorm2dS0``).
    """
    flat = all(p.squeeze().ndim <= 1 for p in module.parameters())
    return isinstance(module, NORMS) or (flat and "norm" in type(module).__name__.lower())


def _samples(several: Any, one: Any) -> int | None:
    """In which dimension an output has its samples: the one that is 1 for one; None for none."""
    try:
        shapes = tensor_of(several).shape, tensor_of(one).shape
    except InputError:
        return 0  # as far as can be told
    if len(shapes[0]) != len(shapes[1]):
        return None
    moved = [i for i, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b]
    return moved[0] if moved in ([0], [1]) and shapes[1][moved[0]] == 1 else None


def parameters_below(whole: Whole, example: Tensor) -> set[int]:
    """Identities of the parameters that autograd finds below the features; none where it fails."""
    frozen = [p for p in whole.model.parameters() if p.is_floating_point() and not p.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with torch.enable_grad():
            (features,) = whole.read(example)
        return _reached(features)
    except RuntimeError:  # tensors of inference mode, for one
        return set()
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


@torch.no_grad()
def feeds(model: nn.Module, name: str, read: Callable[[], Tensor]) -> bool:
    """Whether what is read turns NaN with what a block gives; True where that cannot be tried."""

    def ink(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return tuple(torch.full_like(part, torch.nan) for part in output)
        return torch.full_like(output, torch.nan)

    handle = model.get_submodule(name).register_forward_hook(ink)
    try:
        return bool(read().isnan().any())
    except Exception:  # an output of another kind, or a model that refuses NaN in its own way
        return True
    finally:
        handle.remove()


def gets_past(
    model: nn.Module, name: str, inputs: Tensor, read: Callable[[Tensor], Tensor]
) -> bool:
    """Whether what is read of inputs comes from them by other ways than through a layer's input.

    By autograd; False where it cannot see (inputs of that layer which no gradient reaches).
    """
    given: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_pre_hook(
        lambda _, arguments: given.extend(arguments[:1])
    )
    embeddings = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    frozen = [weight for weight in embeddings if not weight.requires_grad]
    leaves = embeddings
    if inputs.is_floating_point():
        inputs = inputs.detach().clone().requires_grad_(True)
        leaves = [inputs]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        with torch.enable_grad():
            answers = read(inputs)
    except RuntimeError:  # tensors of inference mode, for one
        return False
    finally:
        handle.remove()
        for weight in frozen:
            weight.requires_grad_(False)
    ends = {z.grad_fn for z in given}
    if not ends or None in ends:
        return False
    return bool(_reached(answers, ends) & {id(leaf) for leaf in leaves})


def _reached(value: Tensor, ends: Collection[Any] = ()) -> set[int]:
    """Identities of what autograd finds below a value, not looking below some nodes."""
    todo, seen, found = [value.grad_fn], set(ends), set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found.add(id(getattr(node, "variable", None)))
            todo += [below for below, _ in node.next_functions]
    return found
