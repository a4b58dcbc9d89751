"""A model cut into extractor and head: its features at any layer, its parameters by pattern.

The head is the linear classifier that ends the model; features are its input, or the output of a
model without a head. Features of rank above two are averaged over positions or tokens; of text,
over the tokens that its mask keeps. Own hooks: timm's and transformers' cover neither other models
nor the input of the head.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError, SettingsError, unknown
from immunis.data.feed import run_model
from immunis.models.joined import Joined
from immunis.models.positions import (
    FIRST,
    GRID,
    MAPS,
    Borders,
    all_positions,
    channels_last,
    logits_of,
    mask_of,
    on_grid,
    pooled,
    tensor_of,
)

OUTPUT = ":out"  # among layer names: the model's own output


@dataclass(frozen=True)
class Cut:
    """A model, its head, and the stages of its extractor in the order they run.

    Layers have their names in ``named_modules``; ``"NAME:in"`` is the input of a module, ``""``
    the features; a stage is read at its outlet. ``"NAME:maps"`` is what it gives before pooling,
    in one row a sample, ``"NAME:first"`` the first of its tokens, and ``"NAME:grid"`` means over a
    coarse grid.

    Attributes:
        head: name of the linear head; None if the model is an extractor.
        norms: normalisation layers behind a stage; they are trained, frozen and drawn with it.
        outlets: where stages without an activation inside are read (``models.outlets``).
        last_linear: name of the linear layer whose output is the features, if there is one.
        tokens_first: stages whose output is (tokens, samples, …), as with ``batch_first=False``.
        positioned: stages whose output has several positions or tokens, which pooling averages.
        token_stages: those among them that give tokens: (n, T, C).
        bypasses_head: the model's own answers (the first of several) do not come from the head.
        picks_token: the head reads all tokens of a sample, and the answer comes from one of them.
            That token is the features.
    """

    model: nn.Module
    head: str | None
    stages: tuple[str, ...] = ()
    norms: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    outlets: Mapping[str, str] = field(default_factory=dict, hash=False)
    last_linear: str | None = None
    width: int = 0
    tokens_first: frozenset[str] = frozenset()
    positioned: tuple[str, ...] = ()
    token_stages: tuple[str, ...] = ()
    bypasses_head: bool = False
    picks_token: bool = False

    @property
    def example(self) -> Tensor:
        """Return a parameter; it tells the model's device and dtype."""
        return next(self.model.parameters(), torch.zeros(()))

    @property
    def head_layer(self) -> nn.Linear | None:
        """Return the linear head, if the model has one."""
        return None if self.head is None else _linear(self.model, self.head)

    @property
    def last_layer(self) -> nn.Linear:
        """Return the linear layer whose output is the features; refuse a model without one."""
        if self.last_linear is None:
            raise InputError(
                "the network's features are not the output of a linear layer, so no linear map can "
                "be folded into it. End the extractor with nn.Linear, or train it: give training=."
            )
        return _linear(self.model, self.last_linear)

    @property
    def pooling(self) -> str:
        """Return what makes one row of the tokens of a text."""
        if self.picks_token:
            return "the token that answers"
        own = getattr(self.model, "pooling", None)
        return own if isinstance(own, str) else "the model's own, or mean"

    def last_weights(self) -> tuple[Tensor, Tensor]:
        """Return weight (out×in) and bias (or zeros) of ``last_layer``, float64 on the CPU."""
        layer = self.last_layer
        weight = layer.weight.detach().to("cpu", torch.float64)
        bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
        return weight, bias.to("cpu", torch.float64)

    def parameters_named(self, patterns: Sequence[str]) -> list[str]:
        """Return the names of the extractor's parameters that patterns choose.

        A pattern is a module's name (``"layer4"``: all parameters within) or has wildcards and
        matches modules (``"blocks.[45]"``) or parameters (``"*.bias"``). For a pair (extractor,
        head) names are those inside the extractor. No patterns: the last stage and its norms.
        """
        every = dict(self.model.named_parameters(remove_duplicate=False))
        if self.head is not None:
            every = {n: p for n, p in every.items() if not n.startswith(f"{self.head}.")}
        root = Joined.EXTRACTOR if isinstance(self.model, Joined) else ""
        known = {name.removeprefix(root): name for name in every}
        modules = [n for n, _ in self.model.named_modules(remove_duplicate=False) if n != self.head]
        modules = [n.removeprefix(root) for n in modules if n.startswith(root) and n]
        last = tuple(f"{name}." for name in self.with_norms(self.stages[-1:]))
        chosen = set() if patterns else {n for n in every if n.startswith(last)}
        for pattern in patterns:
            within = tuple(f"{name}." for name in modules if fnmatchcase(name, pattern))
            found = [n for n in known if n.startswith(within) or fnmatchcase(n, pattern)]
            if not found and f"{root}{pattern}" == self.head:
                raise SettingsError(
                    f"{pattern!r} is the head, which is always trained: leave it out."
                )
            if not found and pattern in modules:
                raise SettingsError(f"layer {pattern!r} has no parameters: nothing to train in it.")
            if not found:
                raise unknown("layer", pattern, modules)
            chosen |= {known[name] for name in found}
        if not chosen:
            raise SettingsError("the model has no parameters below its head: nothing to train.")
        same = {id(every[name]) for name in chosen}  # a shared parameter has several names
        return [n for n, p in self.model.named_parameters() if id(p) in same and n in every]

    def with_norms(self, stages: Sequence[str]) -> list[str]:
        """Return stages, and behind each of them its normalisation layers."""
        return [name for stage in stages for name in (stage, *self.norms.get(stage, ()))]

    def copy(self) -> Cut:
        """Return an independent copy."""
        return dataclasses.replace(self, model=copy.deepcopy(self.model))

    def on(self, device: str) -> Cut:
        """Return this cut on a device: itself if it is there already, else a copy."""
        if self.example.device.type == torch.device(device).type:
            return self
        moved = self.copy()
        moved.model.to(device)
        return moved

    def features(self, inputs: Tensor, layer: str = "") -> Tensor:
        """Return pooled features (n, D) at a layer, with gradients if enabled."""
        return self.features_at(inputs, (layer,))[layer]

    def features_at(self, inputs: Tensor, layers: Sequence[str]) -> dict[str, Tensor]:
        """Return pooled features at several layers, from one run of the model."""
        found = self.capture(inputs, (*layers, OUTPUT))
        for layer in layers:
            if layer not in found:
                which = f"layer {layer!r}" if layer else f"head {self.head!r}"
                raise InputError(f"{which} is in the model but was never run.")
        return {layer: self.pool(layer, found[layer], found[OUTPUT], inputs) for layer in layers}

    def answers(self, inputs: Tensor) -> Tensor:
        """Return the model's own answers, one row per input.

        If it returns no such rows, or rows that are not the head's, apply the head to the features.
        """
        found, head = logits_of(run_model(self.model, inputs)), self.head_layer
        rows = head is None or found.shape == (len(inputs), head.out_features)
        if head is None or (rows and not self.bypasses_head):
            return found
        return head(self.features(inputs))

    def pool(
        self, layer: str, output: Any, answers: Any, inputs: Tensor, borders: Borders | None = None
    ) -> Tensor:
        """Return features of a layer's output: its mean over positions or tokens, if it has any.

        ``inputs`` tell which tokens are padding, and do not count. If the model ``picks_token``,
        its features are the token whose head output is the answer. ``borders`` cut a grid.
        """
        mask = mask_of(self.model, inputs)
        if layer.endswith(GRID):
            return on_grid(self._channels_last(layer, output), mask, borders)
        if layer.endswith((MAPS, FIRST)):
            positions = self.unpooled(layer, output, mask)
            return positions.flatten(1) if layer.endswith(MAPS) else positions[:, 0]
        found, head = tensor_of(output), self.head_layer
        if layer in self.tokens_first:
            found = found.transpose(0, 1)
        if self.picks_token and not layer and head is not None:
            found = found.flatten(1, -2)
            with torch.no_grad():
                far = (head(found) - logits_of(answers)[:, None]).abs().sum(-1)
                if mask is not None:
                    far = far.masked_fill(mask[:, : far.shape[1]].to(far.device) == 0, torch.inf)
            return found[torch.arange(len(found), device=found.device), far.argmin(1)]
        if (not layer and head is not None) or layer.endswith(":in"):
            return pooled(found, True, mask)
        return pooled(found, self.has_channels_last(layer, found), mask)

    def unpooled(self, layer: str, output: Any, mask: Tensor | None = None) -> Tensor:
        """Return all positions or tokens of a stage's output, channels last: (n, T, C).

        Of text, tokens that ``mask`` (n, T) drops are zero.
        """
        return all_positions(self._channels_last(layer, output), mask)

    def _channels_last(self, layer: str, output: Any) -> Tensor:
        """Return a stage's output, samples first and channels last."""
        stage, found = _module_of(layer), tensor_of(output)
        if stage in self.tokens_first:
            found = found.transpose(0, 1)
        last = self.has_channels_last(stage, found)
        if found.ndim > 2 and not (found.ndim == 3 if last is None else last):
            found = found.movedim(1, -1)
        return found

    def has_channels_last(self, layer: str, output: Tensor) -> bool | None:
        """Return whether a layer's output has its channels last; None if unclear."""
        last = channels_last(self.model.get_submodule(layer), output)
        nhwc = str(getattr(self.model, "output_fmt", "")).endswith("NHWC")  # timm's word
        return True if last is None and nhwc else last

    def watch(self, layers: Iterable[str], found: dict[str, Any]) -> list[Any]:
        """Add hooks that put what each layer gives into ``found``; return handles to remove."""
        names = {layer: layer or (f"{self.head}:in" if self.head else "") for layer in layers}
        places = {
            layer: name if name.endswith(":in") else self.outlets.get(_module_of(name), name)
            for layer, name in names.items()
            if name not in ("", OUTPUT)
        }

        def add(layer: str, place: str) -> Any:
            def keep(*values: Any) -> None:
                found[layer] = next(iter(values), None)

            module = self.model.get_submodule(_module_of(place))
            if place.endswith(":in"):
                return module.register_forward_pre_hook(
                    lambda _, given, named: keep(*given, *named.values()), with_kwargs=True
                )
            return module.register_forward_hook(lambda _, __, output: keep(output))

        return [add(layer, place) for layer, place in places.items()]

    def capture(self, inputs: Tensor, layers: Sequence[str]) -> dict[str, Any]:
        """Run the model once; return what each layer that ran gave, in the order they ended."""
        found: dict[str, Any] = {}
        handles = self.watch(layers, found)
        try:
            output = run_model(self.model, inputs)
        finally:
            for handle in handles:
                handle.remove()
        whole = (OUTPUT,) if self.head else (OUTPUT, "")
        return found | {layer: output for layer in layers if layer in whole}


def _module_of(layer: str) -> str:
    """Return the name of the module that a layer's name begins with."""
    return layer.removesuffix(":in").removesuffix(MAPS).removesuffix(FIRST).removesuffix(GRID)


def _linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    if not isinstance(layer, nn.Linear):
        raise InputError(f"layer {name!r} is a {type(layer).__name__}, not a linear layer.")
    return layer
