"""A configuration from which one's own PyTorch model can be built again, or why it cannot.

Layers of ``torch.nn`` in ``nn.Sequential`` are written down with their arguments, so that nobody's
code is needed. Any other model is its class with the keywords it was made with. Both are tried:
what is built must have the same tensors and the same printed structure.
"""

from __future__ import annotations

import inspect
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from immunis.core.errors import SettingsError
from immunis.core.settings import differing

PLACES = ("device", "dtype")  # arguments that are no part of an architecture


class _OpaqueError(Exception):
    """What keeps a layer from being written down."""


def described(model: nn.Module, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return how a model is built again: its ``layers``, or its class and ``model_args``.

    Where neither can be told, ``not_rebuilt`` says why. ``options`` are the keywords that a class
    of one's own was made with; of a ``PyTorchModelHubMixin`` they are known.

    Raises:
        SettingsError: if the class, with the options given, builds another model.
    """
    kind = type(model)
    found = {"library": "torch", "architectures": [kind.__name__]}
    try:
        layers = _layer(model, kind.__name__)
        _compare(model, build(json.loads(json.dumps(layers))))
        return {**found, "layers": layers}
    except _OpaqueError as error:
        why = str(error)
    if kind.__module__.startswith("torch.nn."):
        return {**found, "not_rebuilt": why}
    own = getattr(model, "_hub_mixin_config", None) if options is None else options
    own = dict(own) if isinstance(own, Mapping) else {}
    found["class"] = f"{kind.__module__}:{kind.__qualname__}"
    try:
        with torch.device("meta"):
            made = kind(**json.loads(json.dumps(own)))
        _compare(model, made)
        return {**found, "model_args": own}
    except Exception as error:  # a constructor may fail in any way
        told = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        why = f"{kind.__name__}({_keywords(own)}) does not build it: {told}"
    if options:
        raise SettingsError(f"{why}. Give export the options that this one was made with.")
    return {**found, "not_rebuilt": f"{why}; its arguments were not given to export (options=)"}


def build(layers: Mapping[str, Any]) -> nn.Module:
    """Return the model of a description of layers, with fresh weights.

    >>> build({"kind": "Sequential", "parts": {"0": {"kind": "ReLU", "args": {}}}})
    Sequential(
      (0): ReLU()
    )
    """
    if "parts" in layers:
        return nn.Sequential(OrderedDict((n, build(part)) for n, part in layers["parts"].items()))
    args = {n: tuple(v) if isinstance(v, list) else v for n, v in layers["args"].items()}
    return getattr(nn, layers["kind"])(**args)


def _layer(module: nn.Module, place: str) -> dict[str, Any]:
    kind = type(module)
    if getattr(nn, kind.__name__, None) is not kind:
        raise _OpaqueError(f"{place} is a {kind.__name__}, no layer of torch.nn")
    if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
        raise _OpaqueError(f"{place} was given hooks or a forward of its own")
    if kind is nn.Sequential:
        parts = {name: _layer(part, f"{place}.{name}") for name, part in module.named_children()}
        return {"kind": "Sequential", "parts": parts}
    if any(True for _ in module.children()):
        raise _OpaqueError(f"{place} is a {kind.__name__}, which has layers inside")
    return {"kind": kind.__name__, "args": _arguments(module, place)}


def _arguments(layer: nn.Module, place: str) -> dict[str, Any]:
    """Return the arguments of a layer's constructor, which it keeps as attributes."""
    found: dict[str, Any] = {}
    if type(layer) is nn.Identity:  # takes any argument, and forgets it
        return found
    for name, parameter in inspect.signature(type(layer).__init__).parameters.items():
        if name in ("self", *PLACES) or name.startswith("_"):
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _OpaqueError(f"{place}: a {type(layer).__name__} does not keep its arguments")
        value = getattr(layer, name, parameter.default)
        if name == "bias":
            value = value is not None and value is not False
        if not _plain(value):
            raise _OpaqueError(f"{place}: {name} of {type(layer).__name__} cannot be written down")
        found[name] = value
    return found


def _plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _compare(model: nn.Module, made: nn.Module) -> None:
    shapes = [{n: tuple(t.shape) for n, t in each.state_dict().items()} for each in (model, made)]
    if apart := differing(*shapes):
        raise _OpaqueError(f"it differs in {apart[0]}")
    if repr(model) != repr(made):
        raise _OpaqueError("it prints another structure")


def _keywords(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())
