"""A model cut into extractor and head: its features at any layer, its parameters by pattern.

The head is the linear classifier that ends the model; features are what goes into it. A
model without one (a plain ``nn.Linear``, a matrix θ) is an extractor: features are what
comes out. Features of rank above two are pooled by their mean: over positions for
(samples, channels, height, width), over tokens for (samples, tokens, channels), unless a layer's
parts say that it has its channels elsewhere. Of tokens that the head itself reads the one counts
that the model heeds, if it heeds one alone (``Cut.picks``).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError, SettingsError, unknown
from immunis.models.outputs import (
    channels_last,
    first_input,
    fitting,
    known_words,
    logits_of,
    pooled,
    tensor_of,
)

OUTPUT = ":out"  # stands for what the model itself returns, among layers


@dataclass(frozen=True)
class Cut:
    """A model, where its head is, and the stages of its extractor in the order they run.

    ``trailing`` are normalisation layers behind the last stage, which belong with it.
    ``last_linear`` names the linear layer whose output is the features, if there is one;
    ``width`` is the number of features; ``turned`` names stages whose samples come second, after
    tokens (PyTorch's ``batch_first=False``); ``aside`` says that the model's own answers (of
    several the first) do not come from the head, ``picks`` that its head reads several tokens of a
    sample and the model heeds one of them, which then are the features. Layers are named as in
    ``named_modules``; ``"NAME:in"`` stands for the input of that module, ``""`` for the features.
    """

    model: nn.Module
    head: str | None
    stages: tuple[str, ...]
    trailing: tuple[str, ...]
    last_linear: str | None
    width: int
    turned: frozenset[str] = frozenset()
    aside: bool = False
    picks: bool = False

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

    def parameters_named(self, patterns: Sequence[str]) -> list[str]:
        """Names of the extractor's parameters that patterns choose.

        A pattern is a module's name (``"layer4"``: all within), or has wildcards and fits names of
        modules (``"blocks.[45]"``) or of parameters (``"*.bias"``); an extractor with a head beside
        it goes by its own names. No pattern at all means the last stage and the normalisation
        behind it.

        Raises:
            SettingsError: for a pattern that fits nothing, naming close ones.
        """
        every = dict(self.model.named_parameters(remove_duplicate=False))
        if self.head is not None:
            every = {n: p for n, p in every.items() if not n.startswith(f"{self.head}.")}
        first = {id(p): name for name, p in reversed(every.items())}
        root = Joined.EXTRACTOR if isinstance(self.model, Joined) else ""
        modules = [n for n, _ in self.model.named_modules(remove_duplicate=False) if n != self.head]
        modules = [n.removeprefix(root) for n in modules if n.startswith(root) and n]
        last = tuple(f"{name}." for name in (*self.stages[-1:], *self.trailing))
        chosen = set() if patterns else {n for n in every if n.startswith(last)}
        for pattern in patterns:
            within = tuple(f"{name}." for name in modules if fnmatchcase(name, pattern))
            known = {name.removeprefix(root): name for name in every}
            found = [n for n in known if n.startswith(within) or fnmatchcase(n, pattern)]
            if not found and f"{root}{pattern}" == self.head:
                raise SettingsError(f"{pattern!r} is the head, which is always trained.")
            if not found and pattern in modules:
                raise SettingsError(f"layer {pattern!r} has no parameters: nothing to train in it.")
            if not found:
                raise unknown("layer", pattern, modules)
            chosen |= {known[name] for name in found}
        chosen = {first[id(every[name])] for name in chosen}
        if not chosen:
            raise SettingsError("the model has no parameters below its head: nothing to train.")
        return [name for name, _ in self.model.named_parameters() if name in chosen]

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
        """Return pooled features at each layer for one batch, with gradients if enabled.

        Raises:
            InputError: for a layer that the model has but never ran.
        """
        found = self.capture(inputs, (*layers, OUTPUT))
        for layer in layers:
            if layer not in found:
                which = f"layer {layer!r}" if layer else f"head {self.head!r}"
                raise InputError(f"{which} is in the model but was never run.")
        return [self.pool(layer, found[layer], found[OUTPUT]) for layer in layers]

    def answers(self, inputs: Tensor) -> Tensor:
        """What the model itself answers to one batch, however its head reads.

        What the head makes of the features, where the model returns no such row for each input, or
        one that is not the head's.
        """
        with known_words(inputs):
            found = logits_of(self.model(fitting(self.model, inputs)))
        head = self.head_layer
        if head is None:
            return found
        if not self.aside and found.shape == (len(inputs), head.out_features):
            return found
        return head(self.read(inputs)[0])

    def pool(self, layer: str, output: Any, answers: Any) -> Tensor:
        """Features of a layer's output: its mean over positions or tokens, where it has any.

        Of what the head reads the token whose answer is the model's own, where that ``picks`` one.

        Channels come last in what the head reads, where the layer's parts have them
        (``immunis.models.outputs.channels_last``), and in models that say so (timm's NHWC).
        """
        found = tensor_of(output)
        if layer in self.turned:
            found = found.transpose(0, 1)
        head = self.head_layer
        if self.picks and not layer and head is not None:
            found = found.flatten(1, -2)
            with torch.no_grad():
                far = (head(found) - logits_of(answers)[:, None]).abs().sum(-1)
            return found[torch.arange(len(found), device=found.device), far.argmin(1)]
        if (not layer and head is not None) or layer.endswith(":in"):
            return pooled(found, True)
        told = channels_last(self.model.get_submodule(layer), found)
        return pooled(found, (_nhwc(self.model) or None) if told is None else told)

    def capture(self, inputs: Tensor, layers: Sequence[str]) -> dict[str, Any]:
        """Run the model once and return what it gave at those of the layers that ran."""
        inputs = fitting(self.model, inputs)
        found: dict[str, Any] = {}
        aliases = {layer: layer or (f"{self.head}:in" if self.head else "") for layer in layers}
        aliases |= {OUTPUT: ""} if OUTPUT in aliases else {}

        def before(layer: str) -> Callable[..., None]:
            return lambda _, *given: found.__setitem__(layer, first_input(*given))

        def after(layer: str) -> Callable[..., None]:
            return lambda _, __, output: found.__setitem__(layer, output)

        handles = []
        try:
            for layer, name in aliases.items():
                if name:
                    module = self.model.get_submodule(name.removesuffix(":in"))
                    handles.append(
                        module.register_forward_pre_hook(before(layer), with_kwargs=True)
                        if name.endswith(":in")
                        else module.register_forward_hook(after(layer))
                    )
            with known_words(inputs):
                output = self.model(inputs)
        finally:
            for handle in handles:
                handle.remove()
        for layer, name in aliases.items():
            if not name:
                found[layer] = output
        return found


def _linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    if not isinstance(layer, nn.Linear):
        raise InputError(f"layer {name!r} is a {type(layer).__name__}, not a linear layer.")
    return layer


class Joined(nn.Sequential):
    """An extractor and a head, which reads what the extractor gives, pooled."""

    EXTRACTOR = "0."  # how the names of its parts begin

    def forward(self, inputs: Tensor) -> Tensor:
        """The head's answers; channels are where there are as many as it reads."""
        extractor, head = self
        found, wanted = tensor_of(extractor(inputs)), head.in_features
        second, last = found.shape[1] == wanted, found.shape[-1] == wanted
        return head(pooled(found, last if second != last else channels_last(extractor, found)))


def _nhwc(model: nn.Module) -> bool:
    return str(getattr(model, "output_fmt", "")).endswith("NHWC")
