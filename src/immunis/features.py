"""Cut a model into extractor and head, and read features at any layer.

The head is the linear classifier that ends the model; features are what goes into it. A
model without one (a plain ``nn.Linear``, a matrix θ) is an extractor: features are what
comes out. Features of rank above two are pooled by their mean: over positions for
(samples, channels, height, width), over tokens for (samples, tokens, channels).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from immunis.errors import InputError, unknown


@dataclass(frozen=True)
class Cut:
    """A model, where its head is, and the stages of its extractor in the order they run.

    ``last_linear`` names the linear layer whose output is the features, if there is one;
    ``width`` is the number of features. Layers are named as in ``named_modules``;
    ``"NAME:in"`` stands for the input of that module, ``""`` for the features themselves.
    """

    model: nn.Module
    head: str | None
    stages: tuple[str, ...]
    last_linear: str | None
    width: int

    @property
    def example(self) -> Tensor:
        """A parameter of the model: inputs go to its device and dtype."""
        return next(self.model.parameters(), torch.zeros(()))

    @property
    def head_layer(self) -> nn.Linear | None:
        """The linear head, if the model has one."""
        return None if self.head is None else _linear(self.model, self.head)

    def last_weights(self) -> tuple[Tensor, Tensor]:
        """Weight (out×in) and bias of ``last_layer`` in float64 on the CPU; zero bias if none."""
        layer = self.last_layer
        weight = layer.weight.detach().to("cpu", torch.float64)
        bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
        return weight, bias.to("cpu", torch.float64)

    @property
    def last_layer(self) -> nn.Linear:
        """The linear layer whose output is the features; ask ``last_linear`` first."""
        return _linear(self.model, self.last_linear or "")

    def on(self, device: str) -> Cut:
        """Return this cut on a device: itself if it is there already, else a copy."""
        if self.example.device.type == torch.device(device).type:
            return self
        moved = self.copy()
        moved.model.to(device)
        return moved

    def copy(self) -> Cut:
        """Return an independent copy; attacks change their copy freely."""
        return dataclasses.replace(self, model=copy.deepcopy(self.model))

    def read(self, inputs: Tensor, layers: Sequence[str] = ("",)) -> list[Tensor]:
        """Return pooled features at each layer for one batch, with gradients if enabled."""
        found: dict[str, Tensor] = {}

        def keep(layer: str) -> Any:
            def before(_: nn.Module, args: tuple[Any, ...]) -> None:
                found[layer] = args[0]

            def after(_: nn.Module, __: Any, output: Any) -> None:
                found[layer] = output[0] if isinstance(output, tuple) else output

            return before if layer.endswith(":in") else after

        with _hooks() as handles:
            for layer in layers:
                name = layer or (f"{self.head}:in" if self.head else "")
                if not name:
                    continue  # the model's own output
                module = self.model.get_submodule(name.removesuffix(":in"))
                if name.endswith(":in"):
                    hook = keep(f"{layer or name}")
                    handles.append(module.register_forward_pre_hook(hook))
                else:
                    handles.append(module.register_forward_hook(keep(layer)))
            output = self.model(inputs)
        if self.head is None:
            found.setdefault("", _tensor(output))
        elif "" in layers:
            found[""] = found[f"{self.head}:in"]
        return [_pool(_tensor(found[layer])) for layer in layers]


def _linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    if not isinstance(layer, nn.Linear):
        raise InputError(f"layer {name!r} is a {type(layer).__name__}, not a linear layer.")
    return layer


@contextmanager
def _hooks() -> Iterator[list[Any]]:
    handles: list[Any] = []
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()


def _tensor(output: Any) -> Tensor:
    """The tensor in a model's output: itself, a pooled output, or the last hidden state."""
    if isinstance(output, Tensor):
        return output
    for key in ("pooler_output", "last_hidden_state", "logits"):
        if getattr(output, key, None) is not None:
            return getattr(output, key)
    raise InputError(f"the model returns {type(output).__name__}; expected a tensor of features.")


def _pool(features: Tensor) -> Tensor:
    if features.ndim == 4:
        return features.mean((2, 3))
    if features.ndim == 3:
        return features.mean(1)
    if features.ndim != 2:
        raise InputError(f"features have shape {tuple(features.shape)}; no pooling rule fits.")
    return features


def cut(
    model: Any,
    example: Tensor,
    outputs: int | None = None,
    head: str | None = None,
    name: str = "model",
) -> Cut:
    """Cut a model at its head.

    Args:
        model: an ``nn.Module``, a matrix θ, a pair ``(extractor, head)``, or the result of
            ``immunize`` (anything with ``.model`` and ``.head``).
        example: a few inputs, to see what the layers give.
        outputs: number of primary outputs; the last linear layer with that many is the head.
        head: name of the head inside the model, where it cannot be told from ``outputs``.
        name: how to call the model in errors.

    Raises:
        InputError: for what is no model, or one in training mode.
        SettingsError: if ``head`` names no layer.
    """
    if isinstance(model, Tensor):
        layer = nn.Linear(*model.shape, bias=False, dtype=model.dtype)  # type: ignore[misc]
        with torch.no_grad():
            layer.weight.copy_(model.T)
        model = layer.eval()
    elif not isinstance(model, nn.Module) and hasattr(model, "model") and hasattr(model, "head"):
        inside = [n for n, m in model.model.named_modules() if m is model.head]
        model, head = (model.model, inside[0]) if inside else ((model.model, model.head), head)
    if isinstance(model, tuple) and len(model) == 2:
        model, head = nn.Sequential(*model), "1"
        model.train(any(part.training for part in model))
    if isinstance(model, nn.Linear):  # an extractor; wrapped so that its layer has a name
        model, outputs = nn.Sequential(model).train(model.training), None
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{name}: expected an nn.Module, a matrix or (extractor, head), "
            f"got {type(model).__name__}."
        )
    if model.training:
        raise InputError(f"{name} is in training mode; call .eval() on it first.")
    modules = dict(model.named_modules())
    if head is not None and not isinstance(modules.get(head), nn.Linear):
        linear = [n for n, m in modules.items() if isinstance(m, nn.Linear)]
        raise unknown(f"linear head of {name}", head, linear)
    classifier: Any = getattr(model, "get_classifier", None)  # timm's own word for its head
    if head is None and callable(classifier):
        found = [n for n, m in modules.items() if m is classifier()]
        head = found[0] if found and isinstance(modules[found[0]], nn.Linear) else None
    if head is None and outputs is not None:
        fitting = [
            n
            for n, m in modules.items()
            if n and isinstance(m, nn.Linear) and m.out_features == outputs
        ]
        head = fitting[-1] if fitting else None
    whole = Cut(model, head, _stages(model, head), None, 0)
    example = example.to(whole.example)
    try:
        with torch.no_grad():
            (features,) = whole.read(example)
            last = _last_linear(whole, example, features)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"{name} cannot read inputs of shape {tuple(example.shape)}: {error}"
        ) from error
    return dataclasses.replace(whole, last_linear=last, width=features.shape[1])


def _last_linear(whole: Cut, example: Tensor, features: Tensor) -> str | None:
    for name, module in reversed(list(whole.model.named_modules())):
        if isinstance(module, nn.Linear) and name != whole.head:
            (output,) = whole.read(example, (name,))
            if output.shape == features.shape and torch.equal(output, features):
                return name
    return None


def _stages(model: nn.Module, head: str | None) -> tuple[str, ...]:
    """Top-level blocks with parameters; a lone container (a ViT's blocks) is opened."""

    def inside(module: nn.Module, prefix: str) -> list[str]:
        return [
            f"{prefix}{name}"
            for name, child in module.named_children()
            if f"{prefix}{name}" != head and any(True for _ in child.parameters())
        ]

    stages = inside(model, "")
    if len(stages) < 4:
        opened: list[str] = []
        for stage in stages:
            module = model.get_submodule(stage)
            inner = inside(module, f"{stage}.")
            container = isinstance(module, nn.ModuleList | nn.Sequential)
            opened += inner if container and len(inner) > 1 else [stage]
        stages = opened
    return tuple(stages)


def reinitialise(module: nn.Module, seed: int) -> None:
    """Draw every parameter anew, as the layers themselves do at construction.

    Parameters that no layer draws by itself (class tokens, position embeddings) get a
    normal distribution of deviation 0.02.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        drawn: set[int] = set()
        for part in module.modules():
            reset: Any = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
                drawn |= {id(p) for p in part.parameters(recurse=False)}
        for parameter in module.parameters():
            if id(parameter) not in drawn:
                parameter.normal_(std=0.02)


def untrained(source: Cut, seed: int) -> Cut:
    """Return the same architecture with fresh parameters: the control of every audit."""
    fresh = source.copy()
    reinitialise(fresh.model, seed)
    fresh.model.eval()
    return fresh
