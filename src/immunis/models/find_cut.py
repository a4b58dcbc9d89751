"""Find where to cut a model: its head, told by the answers, and its stages, the blocks below."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import ImmunisError, InputError, unknown
from immunis.data.feed import run_model
from immunis.models.cut import OUTPUT, Cut
from immunis.models.influence import bypassed, feeds, parameters_below
from immunis.models.joined import as_module
from immunis.models.outlets import outlets
from immunis.models.positions import logits_of, mask_of, pooled, tensor_of

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


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
    model, head, outputs = as_module(model, head, outputs)
    if not isinstance(model, nn.Module):
        wanted = "expected an nn.Module, a matrix or (extractor, head)"
        raise InputError(f"{name}: {wanted}, got {type(model).__name__}.")
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
            whole = _with_stages(whole, example)
    except ImmunisError:
        raise
    except Exception as error:  # a model may fail in any way
        shape = tuple(example.shape)
        raise InputError(f"{name} cannot read inputs of shape {shape}: {error}") from error
    return dataclasses.replace(whole, last_linear=last, width=features.shape[1])


def _close(one: Tensor, other: Tensor, among: Tensor | None = None) -> bool:
    """Return True for tensors within 1% of the largest value (10% in half precision), or NaN."""
    half = one.dtype in (torch.float16, torch.bfloat16)
    far = (one.double() - other.double()).abs().max()
    largest = (one if among is None else among).abs().max().double()
    return not bool(far > (0.1 if half else 0.01) * largest)


def _with_heard_head(whole: Cut, example: Tensor, name: str) -> Cut:
    """Note whether the answers come from the head; refuse if other layers have a say in them."""

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
    answers, mask = tried.answers(example), mask_of(whole.model, example)

    def averaged(_: nn.Module, given: tuple[Tensor, ...]) -> Tensor:
        tokens = given[0].flatten(1, -2)
        return pooled(tokens, True, mask)[:, None].expand_as(tokens).reshape(given[0].shape)

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
        told = "it gives every token the same answer, so the token that counts cannot be found"
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
    seen, mask = whole.capture(example, names), mask_of(whole.model, example)
    for name in reversed(names):
        if name in seen and _same(pooled(tensor_of(seen[name]), True, mask), features):
            return name
    return None


def _same(found: Any, wanted: Tensor) -> bool:
    return isinstance(found, Tensor) and found.shape == wanted.shape and torch.equal(found, wanted)


def _with_stages(whole: Cut, example: Tensor) -> Cut:
    """Note the stages, the norms behind each, where it is read, and where tokens come first.

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
        own = (part for part in parts if has_own(part, recurse=False))
        return all(is_norm(part) or isinstance(part, nn.PReLU) for part in own)

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
    ran, below = run(names), parameters_below(whole, example)
    twice, alone = (whole.capture(example[rows], list(ran)) for rows in ([0, 0], [0]))
    place = {n: _samples_at(z, alone.get(n)) for n, z in twice.items()}

    def used(name: str) -> bool:
        own = {id(p) for p in model.get_submodule(name).parameters()}
        return bool(below & own) or feeds(model, name, features)

    names = [name for name in ran if place[name] is not None and used(name)]
    behind: dict[str, list[str]] = {}
    for name in names:
        if not only_norms(name):
            behind[name] = []
        elif behind:
            behind[next(reversed(behind))].append(name)
    stages = tuple(behind)
    found = dataclasses.replace(
        whole,
        stages=stages,
        norms={stage: tuple(norms) for stage, norms in behind.items() if norms},
        tokens_first=frozenset(name for name in names if place[name] == 1),
    )
    found = dataclasses.replace(found, outlets=outlets(found, example))
    ran = found.capture(example, stages)
    positioned = tuple(name for name in stages if _has_positions(found, name, ran[name]))
    tokens = tuple(
        name
        for name in positioned
        if (z := tensor_of(ran[name])).ndim == 3 and found.has_channels_last(name, z) is not False
    )
    return dataclasses.replace(found, positioned=positioned, token_stages=tokens)


def _has_positions(whole: Cut, stage: str, output: Any) -> bool:
    """Return True if a stage gives several positions or tokens a sample."""
    try:
        return tensor_of(output).ndim > 2 and whole.unpooled(stage, output).shape[1] > 1
    except InputError:
        return False


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
