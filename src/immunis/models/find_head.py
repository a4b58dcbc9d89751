"""Where a model is cut: its head, told by what it answers, and the stages below it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import ImmunisError, InputError, unknown
from immunis.models.cut import OUTPUT, Cut, Joined
from immunis.models.outputs import fitting, logits_of, pooled, tensor_of
from immunis.models.stages import feeds, gets_past, stages_of


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
        model, head = Joined(*model), "1"
        model.training = any(part.training for part in model)
    if isinstance(model, nn.Linear):  # an extractor; wrapped so that its layer has a name
        wrapped, outputs = nn.Sequential(model), None
        wrapped.training = model.training
        model = wrapped
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{name}: expected an nn.Module, a matrix or (extractor, head), "
            f"got {type(model).__name__}."
        )
    scripted = [
        n or "the model"
        for n, m in model.named_modules()
        if isinstance(m, torch.jit.ScriptModule) and any(True for _ in m.parameters())
    ]
    if scripted:
        raise InputError(
            f"{name}: {scripted[0]} is TorchScript, which cannot be cut; give the nn.Module that "
            "it was made of."
        )
    awake = [n or "the model" for n, m in model.named_modules() if m.training]
    if awake:
        raise InputError(f"{name}: {awake[0]} is in training mode; call .eval() on it first.")
    modules = dict(model.named_modules())
    if head is not None and not isinstance(modules.get(head), nn.Linear):
        linear = [n for n, m in modules.items() if isinstance(m, nn.Linear)]
        raise unknown(f"linear head of {name}", head, linear)
    classifier: Any = getattr(model, "get_classifier", None)  # timm's own word for its head
    if head is None and callable(classifier):
        found = [n for n, m in modules.items() if m is classifier()]
        head = found[0] if found and isinstance(modules[found[0]], nn.Linear) else None
    whole = Cut(model, head, (), (), None, 0)
    try:
        with torch.no_grad():
            if head is None and outputs is not None:
                whole = dataclasses.replace(whole, head=_guess_head(whole, example, outputs))
            (features,) = whole.read(example)
            _check_rows(whole, example, features, name)
            if head is not None:
                whole = dataclasses.replace(whole, aside=not _is_heard(model, head, example, name))
                whole = _as_heeded(whole, example, name)
                (features,) = whole.read(example)
            last = _last_linear(whole, example, features)
            stages, trailing, turned = stages_of(whole, example)
    except ImmunisError:
        raise
    except Exception as error:  # a model of any make refuses in its own way
        raise InputError(
            f"{name} cannot read inputs of shape {tuple(example.shape)}: {error}"
        ) from error
    return dataclasses.replace(
        whole, last_linear=last, width=features.shape[1], stages=stages, trailing=trailing,
        turned=turned,
    )  # fmt: skip


def _alike(one: Tensor, other: Tensor, among: Tensor | None = None) -> bool:
    """Whether two are the same but for rounding, beside all there are (those of the first).

    NaN, which others refuse in words of their own, tells nothing apart.
    """
    half = one.dtype in (torch.float16, torch.bfloat16)
    far = (one.double() - other.double()).abs().max()
    largest = (one if among is None else among).abs().max().double()
    return not bool(far > (0.1 if half else 0.01) * largest)


def _check_rows(whole: Cut, example: Tensor, features: Tensor, name: str) -> None:
    """Refuse a model whose features of a row are not that row's alone: no attack could use it."""
    if not _alike(features[:1], whole.read(example[:1])[0], features):
        raise InputError(
            f"{name}: features of a row change with the rows beside it, or from call to call. Use "
            "BatchNorm with running statistics, and no randomness in evaluation mode."
        )


def _is_heard(model: nn.Module, head: str, example: Tensor, name: str) -> bool:
    """Whether the model's answers come from its head.

    Raises:
        InputError: where they come from something else as well, which nobody would look at.
    """

    def answers(inputs: Tensor) -> Tensor:
        return logits_of(model(fitting(model, inputs)))

    heard = feeds(model, head, lambda: answers(example))
    if heard and gets_past(model, head, example, answers):
        raise InputError(
            f"{name}: its answers come from more than what its head {head!r} reads, so those "
            "features would be only part of what is released. Wrap the model so that one linear "
            "head reads all of it (of two heads whose answers are averaged: both inputs side by "
            "side, and half of each one's weights)."
        )
    return heard


def _as_heeded(whole: Cut, example: Tensor, name: str) -> Cut:
    """The cut that reads what the model's answers come from, where its head reads tokens.

    Their mean, if answers stay as they are with it in the place of every token, or else the one
    whose answer is the model's own. Tried with a head of random weights: one of zeros tells
    nothing.

    Raises:
        InputError: where it is neither (the largest answer of all, say), or the head as it is
            cannot tell which token that is.
    """
    head, found = whole.head_layer, whole.capture(example, ("", OUTPUT))
    shape = logits_of(found[OUTPUT]).shape
    if whole.aside or head is None or shape != (len(example), head.out_features):
        return whole
    if tensor_of(found[""]).ndim == 2:
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

    handle = layer.register_forward_pre_hook(averaged)
    of_mean = tried.answers(example)
    handle.remove()
    if _alike(answers, of_mean):
        return whole
    picked = dataclasses.replace(whole, picks=True)
    (token,) = dataclasses.replace(tried, picks=True).read(example)
    told = "its answers are neither what it says of their mean nor of one of them"
    if _alike(answers, layer(token)):
        if _alike(token, picked.read(example)[0]):
            return picked
        told = "it answers all of them alike, so that which one counts cannot be told"
    raise InputError(
        f"{name}: its head {whole.head!r} reads several tokens or positions of a sample, and "
        f"{told}. Wrap the model in a module that gives the head one row a sample."
    )


def _guess_head(whole: Cut, example: Tensor, outputs: int) -> str | None:
    """The last linear layer with that many outputs whose output is the model's own."""
    found = [
        name
        for name, module in whole.model.named_modules()
        if name and isinstance(module, nn.Linear) and module.out_features == outputs
    ]
    seen = whole.capture(example, ("", *found))
    answer = tensor_of(seen.pop(""))
    for name in reversed(found):
        given = seen.get(name)
        if isinstance(given, Tensor) and given.shape == answer.shape and torch.equal(given, answer):
            return name
    return None


def _last_linear(whole: Cut, example: Tensor, features: Tensor) -> str | None:
    """The linear layer whose output, pooled, is the features."""
    names = [
        name
        for name, module in whole.model.named_modules()
        if isinstance(module, nn.Linear) and name != whole.head
    ]
    seen = whole.capture(example, names)
    for name in reversed(names):
        if name in seen:
            output = pooled(tensor_of(seen[name]), channels_last=True)
            if output.shape == features.shape and torch.equal(output, features):
                return name
    return None
