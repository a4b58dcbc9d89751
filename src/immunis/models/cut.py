"""A model cut into extractor and head: its features at any layer, its parameters by pattern.

The head is the linear classifier that ends the model; features are its input, or the output of a
model without a head. Features of rank above two are averaged over positions or tokens. Own hooks:
timm's and transformers' cover neither other models nor the input of the head.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError, SettingsError, unknown

OUTPUT = ":out"  # among layer names: the model's own output


def run_model(model: nn.Module, inputs: Tensor) -> Any:
    """Return a model's output for inputs moved to its device and, except token ids, its dtype."""
    parameter = next(model.parameters(), torch.zeros(()))
    embeds = any(isinstance(module, nn.Embedding) for module in model.modules())
    tokens = embeds and inputs.dtype in (torch.int32, torch.int64)
    try:
        return model(inputs.to(parameter.device, None if tokens else parameter.dtype))
    except IndexError as error:
        if inputs.is_floating_point() or not inputs.numel():
            raise
        raise InputError(
            f"token ids from {int(inputs.min())} to {int(inputs.max())}: {error}. Use the model's "
            "own tokenizer."
        ) from error


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


def pooled(features: Tensor, last: bool | None = None) -> Tensor:
    """Return features averaged over positions or tokens: (n, D).

    ``last`` says whether channels come last; None means (n, C, H, W) and (n, T, C).
    """
    last = features.ndim == 3 if last is None else last
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


@dataclass(frozen=True)
class Cut:
    """A model, its head, and the stages of its extractor in the order they run.

    Layers have their names in ``named_modules``; ``"NAME:in"`` is the input of a module, ``""``
    the features.

    Attributes:
        head: name of the linear head; None if the model is an extractor.
        trailing: normalisation layers behind the last stage; they are trained with it.
        last_linear: name of the linear layer whose output is the features, if there is one.
        tokens_first: stages whose output is (tokens, samples, …), as with ``batch_first=False``.
        bypasses_head: the model's own answers (the first of several) do not come from the head.
        picks_token: the head reads all tokens of a sample; the answer depends on one of them, which
            is then the features.
    """

    model: nn.Module
    head: str | None
    stages: tuple[str, ...] = ()
    trailing: tuple[str, ...] = ()
    last_linear: str | None = None
    width: int = 0
    tokens_first: frozenset[str] = frozenset()
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
        head) names are those inside the extractor. No patterns: last stage and ``trailing``.
        """
        every = dict(self.model.named_parameters(remove_duplicate=False))
        if self.head is not None:
            every = {n: p for n, p in every.items() if not n.startswith(f"{self.head}.")}
        root = Joined.EXTRACTOR if isinstance(self.model, Joined) else ""
        known = {name.removeprefix(root): name for name in every}
        modules = [n for n, _ in self.model.named_modules(remove_duplicate=False) if n != self.head]
        modules = [n.removeprefix(root) for n in modules if n.startswith(root) and n]
        last = tuple(f"{name}." for name in (*self.stages[-1:], *self.trailing))
        chosen = set() if patterns else {n for n in every if n.startswith(last)}
        for pattern in patterns:
            within = tuple(f"{name}." for name in modules if fnmatchcase(name, pattern))
            found = [n for n in known if n.startswith(within) or fnmatchcase(n, pattern)]
            if not found and f"{root}{pattern}" == self.head:
                raise SettingsError(f"{pattern!r} is the head, which is always trained.")
            if not found and pattern in modules:
                raise SettingsError(f"layer {pattern!r} has no parameters: nothing to train in it.")
            if not found:
                raise unknown("layer", pattern, modules)
            chosen |= {known[name] for name in found}
        if not chosen:
            raise SettingsError("the model has no parameters below its head: nothing to train.")
        same = {id(every[name]) for name in chosen}  # a shared parameter has several names
        return [n for n, p in self.model.named_parameters() if id(p) in same and n in every]

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
        found = self.capture(inputs, (layer, OUTPUT))
        if layer not in found:
            which = f"layer {layer!r}" if layer else f"head {self.head!r}"
            raise InputError(f"{which} is in the model but was never run.")
        return self.pool(layer, found[layer], found[OUTPUT])

    def answers(self, inputs: Tensor) -> Tensor:
        """Return the model's own answers, one row per input.

        If it returns no such rows, or rows that are not the head's, apply the head to the features.
        """
        found, head = logits_of(run_model(self.model, inputs)), self.head_layer
        rows = head is None or found.shape == (len(inputs), head.out_features)
        if head is None or (rows and not self.bypasses_head):
            return found
        return head(self.features(inputs))

    def pool(self, layer: str, output: Any, answers: Any) -> Tensor:
        """Return features of a layer's output: its mean over positions or tokens, if it has any.

        If the model ``picks_token``, its features are the token whose head output is the answer.
        """
        found, head = tensor_of(output), self.head_layer
        if layer in self.tokens_first:
            found = found.transpose(0, 1)
        if self.picks_token and not layer and head is not None:
            found = found.flatten(1, -2)
            with torch.no_grad():
                far = (head(found) - logits_of(answers)[:, None]).abs().sum(-1)
            return found[torch.arange(len(found), device=found.device), far.argmin(1)]
        if (not layer and head is not None) or layer.endswith(":in"):
            return pooled(found, True)
        last = channels_last(self.model.get_submodule(layer), found)
        if last is None and str(getattr(self.model, "output_fmt", "")).endswith("NHWC"):  # timm
            last = True
        return pooled(found, last)

    def watch(self, layers: Iterable[str], found: dict[str, Any]) -> list[Any]:
        """Add hooks that put what each layer gives into ``found``; return handles to remove."""
        names = {layer: layer or (f"{self.head}:in" if self.head else "") for layer in layers}
        modules = {
            layer: self.model.get_submodule(name.removesuffix(":in"))
            for layer, name in names.items()
            if name not in ("", OUTPUT)
        }

        def add(layer: str, module: nn.Module) -> Any:
            def keep(*values: Any) -> None:
                found[layer] = next(iter(values), None)

            if names[layer].endswith(":in"):
                return module.register_forward_pre_hook(
                    lambda _, given, named: keep(*given, *named.values()), with_kwargs=True
                )
            return module.register_forward_hook(lambda _, __, output: keep(output))

        return [add(layer, module) for layer, module in modules.items()]

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


def _linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    if not isinstance(layer, nn.Linear):
        raise InputError(f"layer {name!r} is a {type(layer).__name__}, not a linear layer.")
    return layer


class Joined(nn.Sequential):
    """An extractor and a head that reads the extractor's pooled output."""

    EXTRACTOR = "0."  # prefix of the extractor's parameter names

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the head's answers; channels are the dimension as wide as the head's input."""
        extractor, head = self
        found, wanted = tensor_of(extractor(inputs)), head.in_features
        second, last = found.shape[1] == wanted, found.shape[-1] == wanted
        return head(pooled(found, last if second != last else channels_last(extractor, found)))
