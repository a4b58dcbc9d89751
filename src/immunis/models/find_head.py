"""Find where to cut a model: its head, told by the answers, and the stages below it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import ImmunisError, InputError, unknown
from immunis.models.cut import OUTPUT, Cut, Joined, logits_of, pooled, run_model, tensor_of
from immunis.models.stages import bypassed, feeds, stages_of


def cut(
    model: Any,
    example: Tensor,
    outputs: int | None = None,
    head: str | None = None,
    name: str = "model",
) -> Cut:
    """Cut a model at its head: the named one, or the last linear layer with ``outputs`` outputs.

    ``model`` is an ``nn.Module``, a matrix θ, a pair ``(extractor, head)``, or the result of
    ``immunize`` (anything with ``.model`` and ``.head``); ``name`` is its name in errors. It is run
    on ``example``, a few inputs.

    Raises:
        InputError: if it is no model, is in training mode, or cannot be cut.
        SettingsError: if ``head`` names no linear layer.
    """
    model, head, outputs = _as_module(model, head, outputs)
    if not isinstance(model, nn.Module):
        came = type(model).__name__
        raise InputError(
            f"{name}: expected an nn.Module, a matrix or (extractor, head), got {came}."
        )
    modules = dict(model.named_modules())
    for part, module in modules.items():
        where = f"{name}: {part or 'the model'}"
        if isinstance(module, torch.jit.ScriptModule) and list(module.parameters()):
            raise InputError(f"{where} is TorchScript; give the nn.Module that it was made from.")
        if module.training:
            raise InputError(f"{where} is in training mode; call .eval() on it first.")
    linear = [n for n, m in modules.items() if isinstance(m, nn.Linear)]
    if head is not None and head not in linear:
        raise unknown(f"linear head of {name}", head, linear)
    classifier: Any = getattr(model, "get_classifier", None)  # timm's name for the head
    if head is None and callable(classifier):
        head = next((n for n in linear if modules[n] is classifier()), None)
    try:
        with torch.no_grad():
            named = head is not None
            if head is None and outputs is not None:
                head = _guessed_head(model, linear, example, outputs)
            whole = Cut(model, head)
            features = whole.features(example)
            if not _close(features[:1], whole.features(example[:1]), features):
                raise InputError(
                    f"{name}: features of a row change with the rows beside it, or from call to "
                    "call. Use BatchNorm with running statistics, and no randomness in evaluation."
                )
            if named:
                whole = _with_heeded_token(_with_heard_head(whole, example, name), example, name)
                features = whole.features(example)
            last = _last_linear(whole, linear, example, features)
            stages, trailing, tokens_first = stages_of(whole, example)
    except ImmunisError:
        raise
    except Exception as error:  # a model may fail in any way
        shape = tuple(example.shape)
        raise InputError(f"{name} cannot read inputs of shape {shape}: {error}") from error
    whole = dataclasses.replace(whole, last_linear=last, width=features.shape[1])
    return dataclasses.replace(whole, stages=stages, trailing=trailing, tokens_first=tokens_first)


def _as_module(
    model: Any, head: str | None, outputs: int | None
) -> tuple[Any, str | None, int | None]:
    """Return a matrix, pair or result of ``immunize`` as one module, and where its head is."""
    if isinstance(model, Tensor):
        layer = nn.Linear(*model.shape, bias=False, dtype=model.dtype)  # type: ignore[misc]
        with torch.no_grad():
            layer.weight.copy_(model.T)
        model = layer.eval()
    elif not isinstance(model, nn.Module) and hasattr(model, "model") and hasattr(model, "head"):
        inside = [n for n, m in model.model.named_modules() if m is model.head]
        model, head = (model.model, inside[0]) if inside else ((model.model, model.head), head)
    if isinstance(model, tuple) and len(model) == 2:
        model, head = Joined(*model), "1"
    elif isinstance(model, nn.Linear):  # an extractor; wrapped so that its layer has a name
        model, outputs = nn.Sequential(model), None
    else:
        return model, head, outputs
    model.training = any(part.training for part in model)
    return model, head, outputs


def _close(one: Tensor, other: Tensor, among: Tensor | None = None) -> bool:
    """Return True for tensors within 1% of the largest value (10% in half precision), or NaN."""
    half = one.dtype in (torch.float16, torch.bfloat16)
    far = (one.double() - other.double()).abs().max()
    largest = (one if among is None else among).abs().max().double()
    return not bool(far > (0.1 if half else 0.01) * largest)


def _with_heard_head(whole: Cut, example: Tensor, name: str) -> Cut:
    """Note whether the answers come from the head; refuse if they come from more than it reads."""

    def answers(inputs: Tensor) -> Tensor:
        return logits_of(run_model(whole.model, inputs))

    head = whole.head or ""
    heard = feeds(whole.model, head, lambda: answers(example))
    if heard and bypassed(whole.model, head, example, answers):
        raise InputError(
            f"{name}: its answers come from more than what its head {head!r} reads. Wrap the model "
            "so that one linear head reads everything (for two heads whose answers are averaged: "
            "both inputs side by side, and half of each head's weights)."
        )
    return dataclasses.replace(whole, bypasses_head=not heard)


def _with_heeded_token(whole: Cut, example: Tensor, name: str) -> Cut:
    """Note whether the answers come from the mean of the tokens that the head reads, or from one.

    From the mean, if replacing every token by it keeps the answers; from one token, if the head
    maps it to the answers. Tried with a random head, since a zero head shows nothing. Refused, if
    neither holds (the maximum over tokens, say), or if the model's own head cannot tell the tokens.
    """
    head, found = whole.head_layer, whole.capture(example, ("", OUTPUT))
    rows = head is not None and logits_of(found[OUTPUT]).shape == (len(example), head.out_features)
    if whole.bypasses_head or not rows or tensor_of(found[""]).ndim == 2:
        return whole
    tried = whole.copy()
    layer = tried.head_layer
    assert layer is not None
    drawn = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(0))
    layer.weight.copy_(drawn)
    if layer.bias is not None:
        layer.bias.zero_()
    answers = tried.answers(example)

    def averaged(_: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
        tokens = given[0].flatten(1, -2)
        return tokens.mean(1, keepdim=True).expand_as(tokens).reshape(given[0].shape)

    handle = layer.register_forward_pre_hook(averaged)  # on a copy, which is dropped
    if _close(answers, tried.answers(example)):
        return whole
    handle.remove()
    picked = dataclasses.replace(whole, picks_token=True)
    token = dataclasses.replace(tried, picks_token=True).features(example)
    told = "its answers come neither from their mean nor from one of them"
    if _close(answers, layer(token)):
        if _close(token, picked.features(example)):
            return picked
        told = "it answers all of them alike, so the one that counts cannot be found"
    raise InputError(
        f"{name}: its head {whole.head!r} reads several tokens or positions of a sample, and "
        f"{told}. Wrap the model in a module that gives the head one row a sample."
    )


def _guessed_head(model: nn.Module, linear: list[str], example: Tensor, outputs: int) -> str | None:
    """Return the last linear layer of that many outputs whose output is the model's."""
    named = dict(model.named_modules())
    names = [n for n in linear if n and named[n].out_features == outputs]
    seen = Cut(model, None).capture(example, (OUTPUT, *names))
    answer = tensor_of(seen.pop(OUTPUT))
    return next((n for n in reversed(names) if _same(seen.get(n), answer)), None)


def _last_linear(whole: Cut, linear: list[str], example: Tensor, features: Tensor) -> str | None:
    """Return the linear layer whose pooled output is the features."""
    names = [name for name in linear if name != whole.head]
    seen = whole.capture(example, names)
    for name in reversed(names):
        if name in seen and _same(pooled(tensor_of(seen[name]), last=True), features):
            return name
    return None


def _same(found: Any, wanted: Tensor) -> bool:
    return isinstance(found, Tensor) and found.shape == wanted.shape and torch.equal(found, wanted)
