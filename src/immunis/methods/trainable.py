"""Refuse networks that cannot be trained, before anything is: each fault in words."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from immunis.core.errors import InputError
from immunis.data.feed import run_model
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.models.find_cut import cut
from immunis.models.influence import feeds, parameters_below
from immunis.models.positions import logits_of
from immunis.theory.gram import check_pair
from immunis.training.settings import Training


def checked_network(model: Any, primary: Task, harmful: Task, head: Any, how: Training) -> Cut:
    """Return a copy of a network, cut at its head; refuse one that cannot be trained."""
    check_pair(primary, harmful)
    if primary is harmful:
        raise InputError("primary and harmful are one and the same task; expected two.")
    if not isinstance(model, nn.Module):
        raise InputError(f"training takes a network (nn.Module), got {type(model).__name__}.")
    for fault in _faults_of_weights(model):
        raise InputError(fault)
    try:
        plain = copy.deepcopy(model).eval()
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"the model cannot be copied: {str(error).splitlines()[0][:200]} It must not store "
            "results of a forward pass; use nn.utils.parametrizations for weight_norm."
        ) from error
    whole = cut(plain, primary.train.first(2), primary.outputs, head)
    for fault in _faults_of_answers(whole, primary, how.layers):
        raise InputError(fault)
    return whole


def _faults_of_weights(model: nn.Module) -> Iterator[str]:
    if any("_orig_mod" in name.split(".") for name, _ in model.named_modules()):
        yield (
            "the model, or a part of it, is under torch.compile. Pass the plain one (._orig_mod); "
            "--compile, or Hardware(compile=True), compiles it for training."
        )
    for name, p in model.named_parameters():
        if p.is_meta or isinstance(p, nn.parameter.UninitializedParameter):
            yield f"the model's {name} has no values: load its weights, or run a lazy model once."
        if p.dtype == torch.float16:
            yield (
                f"the model's {name} is in float16, where small steps are lost. Call .float() on "
                "the model; precision '16-mixed' trains it in half precision."
            )
        if not bool(torch.isfinite(p).all()):
            yield f"the model's {name} holds NaN or infinities; load other weights."


def _faults_of_answers(whole: Cut, primary: Task, layers: Sequence[str]) -> Iterator[str]:
    plain, outputs, example = whole.model, primary.outputs, primary.train.first(2)
    answers, classes = logits_of(run_model(plain, example)), primary.kind == "classification"
    if whole.head is None:
        last = answers.shape[-1]
        linear = [name for name, module in plain.named_modules() if isinstance(module, nn.Linear)]
        other, hint = cut(plain, example, last).head if classes else None, ""
        if other is not None:
            hint = (
                f" It ends in {other!r} with {last}: if the labels of {primary.name} are some of "
                f"those, say Task(..., classes={last})."
            )
        yield (
            f"no linear head with {outputs} outputs ends the model, so its primary loss cannot be "
            f"kept.{hint} Name it with head= (linear layers: {', '.join(linear) or 'none'}), or "
            f"pass one: head=nn.Linear(features, {outputs})."
        )
    if answers.ndim != 2:
        came = tuple(answers.shape)
        yield f"the model answers with shape {came}; expected one row of {outputs} outputs each."
    if whole.bypasses_head:
        yield (
            f"the model's answers do not come from its head {whole.head!r} (the first answer "
            "counts). Wrap the model in a module that returns what that head gives."
        )
    names = set(whole.parameters_named(layers))
    reached = parameters_below(whole, example) & {id(plain.get_parameter(name)) for name in names}
    owners = {name.rpartition(".")[0] for name in names}  # tried too, as autograd misses some
    if not reached and not any(feeds(plain, n, lambda: whole.features(example)) for n in owners):
        yield (
            f"the features do not come through {', '.join(layers)}: training it would change "
            "nothing. Name layers below the head."
        )
    sums = answers.double().sum(1)
    if classes and bool((answers >= 0).all()) and bool(((sums - 1).abs() <= 1e-3).all()):
        yield (
            "the model answers with probabilities (each row is positive and sums to 1), but the "
            "loss needs logits. Pass the model without its softmax."
        )
