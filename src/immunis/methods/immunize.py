"""Immunize an extractor, linear or deep: any method in, a plain model and its primary head out."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.distributed import world
from immunis.core.errors import InputError
from immunis.core.progress import Progress, silent
from immunis.core.records import Record
from immunis.core.settings import build
from immunis.core.settings import whole as whole_number
from immunis.data.split import Split
from immunis.data.task import Task
from immunis.methods import LinearProblem, Method, get_method
from immunis.methods.record import Run, linear_record, network_record
from immunis.models.cut import Cut, Joined, logits_of, run_model
from immunis.models.find_head import cut
from immunis.models.linear import (
    checked_head,
    compensated_head,
    in_dtype_of,
    least_squares_head,
    linear_layer,
    theta_and_bias,
)
from immunis.models.stages import feeds, parameters_below
from immunis.theory.gram import as_extractor, check_pair, paired_grams
from immunis.training.hardware import Hardware
from immunis.training.loop import fit
from immunis.training.settings import Training


@dataclass(frozen=True)
class Immunized:
    """An immunized extractor.

    Attributes:
        model: a plain copy of the given model: same class, shapes, dtype and state-dict keys.
        head: the primary task's linear head. It is part of ``model`` if the given model had one.
        exact: True if the head compensates the change exactly (θ is invertible). Primary
            predictions are then those of the original, up to rounding.
    """

    model: nn.Module
    head: nn.Linear
    exact: bool
    _measure: Callable[[], Record]

    @cached_property
    def record(self) -> Record:
        """The run as a record, measured on the model as it was returned."""
        return self._measure()


def immunize(
    model: nn.Module | Tensor,
    primary: Task,
    harmful: Task,
    method: str = "erase",
    *,
    head: nn.Linear | str | None = None,
    training: Training | Mapping[str, Any] | None = None,
    hardware: Hardware | Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    wandb: str | None = None,
    seed: int = 0,
    progress: Progress = silent,
    **settings: Any,
) -> Immunized:
    """Change an extractor so that the harmful task is hard and the primary task stays easy.

    ``model`` is a square, invertible ``nn.Linear`` or matrix θ (features are ``xᵀθ``), or a network
    that ends in a linear head. With ``training`` (always for ``probe``), layers of the network are
    trained: ``training`` and ``hardware`` are a ``Training`` and a ``Hardware``, or their settings.
    ``folder`` keeps the checkpoint and the curves, ``resume`` continues from there, and ``wandb``
    names a project of Weights & Biases. Without ``training``, a linear map of the features is
    folded into the network's last layer.

    ``harmful`` is the defender's own sample of the task. ``method`` is a name that ``immunis list
    methods`` shows, ``settings`` are its settings. ``head`` is the primary head to compensate (by
    default the least-squares one). To train a network, it is the name of its head, if that cannot
    be found, or a new head that reads a bare encoder's pooled output and is trained with it.
    ``progress`` is called with the method's name and the share of the work done.

    Raises:
        InputError: for models or data that cannot be used.
        SettingsError: for an unknown method or setting, or one out of range.
        NumericalError: if the method diverges.

    >>> from immunis.data.sources import digits
    >>> tasks = digits()
    >>> r = immunize(torch.eye(64), tasks.primary, tasks.harmful, method="frontier")
    >>> r.model, r.exact
    (Linear(in_features=64, out_features=64, bias=False), True)
    """
    began, seed, chosen = time.perf_counter(), whole_number(seed, "seed"), get_method(method)

    def report(_: str, share: float) -> None:
        progress(method, share)

    network = isinstance(model, nn.Module) and not isinstance(model, nn.Linear)
    if training is None and not (network and chosen.solve is None):
        if isinstance(head, str):
            raise InputError(f"head={head!r}: expected nn.Linear; a name goes with training= only.")
        configured = chosen.configure(settings)
        solve: Callable[..., Immunized] = _fold if network else _solve
        return solve(model, (primary, harmful), chosen, configured, head, seed, report, began)

    configured = chosen.configure(settings, network=True)
    how = build(Training, training or {}, "training")
    where = build(Hardware, hardware or {}, "hardware")
    inside = ""
    if isinstance(model, nn.Module) and isinstance(head, nn.Linear):
        model, head, inside = Joined(model, head), "1", "0"
    whole = _checked_network(model, primary, harmful, head, how)
    assert isinstance(model, nn.Module)
    assert chosen.objective is not None
    keep: dict[str, Any] = {"folder": folder, "resume": resume, "wandb": wandb, "seed": seed}
    keep |= {"identity": json.dumps([method, asdict(configured)]), "progress": report}
    objective = chosen.objective(configured, whole)
    found = fit(whole, objective, primary, harmful, how, where, **keep)
    said = {"method": method, **asdict(configured)}
    said |= {"training": asdict(how), "hardware": asdict(where)}
    details = {k: getattr(found, k) for k in ("history", "best_step", "steps", "weights", "notes")}
    details |= {"training_seconds": found.seconds, "processes": world()}
    run = Run((primary, harmful), said, details, seed, time.perf_counter() - began)
    after = replace(whole, model=copy.deepcopy(found.model))
    trained = found.model.to(next(model.parameters()).device)
    for mine, given in zip(trained.parameters(), model.parameters(), strict=True):
        mine.requires_grad_(given.requires_grad)
    target = replace(whole, model=trained).head_layer
    assert target is not None
    measure = partial(network_record, run, whole, after)
    return Immunized(trained.get_submodule(inside), target, False, measure)


def _solve(
    model: Any,
    tasks: tuple[Task, Task],
    method: Method,
    settings: Any,
    head: nn.Linear | None,
    seed: int,
    progress: Progress,
    began: float,
    *,
    given: tuple[Task, Task] | None = None,
) -> Immunized:
    """Immunize a linear extractor: find θ, and the head that compensates it.

    ``given`` are the tasks that the user gave, if ``tasks`` hold a network's features of them.
    """
    assert method.solve is not None
    theta, bias = theta_and_bias(model, tasks[0])
    # With a bias, features are affine in x. The method then works on the features, from θ₀ = I,
    # and its linear map is composed with the layer afterwards.
    extractor = None if bias is None else as_extractor(model)
    origin = theta if bias is None else torch.eye(len(theta), dtype=torch.float64)
    moments = paired_grams(*tasks, extractor)
    problem = LinearProblem(origin, *moments, tasks, extractor, seed, progress)
    solution = method.solve(problem, settings)
    change = torch.linalg.solve(origin, solution.theta)  # T: features z become zT
    like = model.weight if isinstance(model, nn.Linear) else model
    layer = linear_layer(theta @ change, None if bias is None else bias @ change)
    layer = in_dtype_of(like, layer, "the immunized θ")
    rounded = torch.linalg.solve(theta, layer.weight.to("cpu", torch.float64).T)
    features = moments[0].transform(origin)
    old_head = least_squares_head(features) if head is None else checked_head(head, theta, tasks[0])
    new_head, exact = compensated_head(old_head, rounded, features)
    new_head = in_dtype_of(like, new_head, "the compensated head")
    said = {"method": method.name, **asdict(settings)}
    run = Run(given or tasks, said, solution.details, seed, time.perf_counter() - began)
    before, after = copy.deepcopy((model, old_head)), copy.deepcopy((layer, new_head))
    progress("", 1.0)
    measure = partial(linear_record, run, tasks, before, after, exact)
    return Immunized(layer, new_head, exact, measure)


def _fold(
    model: nn.Module,
    tasks: tuple[Task, Task],
    method: Method,
    settings: Any,
    head: nn.Linear | None,
    *more: Any,
) -> Immunized:
    """Immunize a network's features from θ₀ = I, and fold θ into the layer that makes them."""
    check_pair(*tasks)
    whole = cut(model, tasks[0].train.first(2), tasks[0].outputs)
    like = whole.last_layer.weight

    @torch.no_grad()
    def features_of(split: Split) -> tuple[Tensor, Tensor]:
        parts = [(whole.features(x).cpu(), y) for x, y in split.batches(512)]
        return torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts])

    primary, harmful = (
        task.with_data(features_of(task.train), task.test and features_of(task.test))
        for task in tasks
    )
    eye, own = torch.eye(whole.width, dtype=torch.float64), head or whole.head_layer
    found = _solve(eye, (primary, harmful), method, settings, own, *more, given=tasks)
    fresh = whole.copy()
    layer, target = fresh.last_layer, fresh.head_layer if head is None else None
    change = found.model.state_dict()["weight"].to(like)
    if target is not None and target.bias is None and not found.exact:
        raise InputError(
            "the network's head has no bias to compensate a singular map; use a strength above 0."
        )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(change @ parameter)
        for name, parameter in () if target is None else target.named_parameters():
            parameter.copy_(found.head.get_parameter(name))
    return replace(found, model=fresh.model, head=target or found.head.to(like))


def _checked_network(model: Any, primary: Task, harmful: Task, head: Any, how: Training) -> Cut:
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
        other = cut(plain, example, last).head if classes else None
        hint = f" It ends in {other!r} with {last}: if the labels of {primary.name} are some of "
        hint = f"{hint}those, say Task(..., classes={last})." if other is not None else ""
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
