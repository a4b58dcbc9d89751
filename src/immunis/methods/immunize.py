"""Immunize an extractor, linear or deep: any method in, a plain model and its primary head out."""

from __future__ import annotations

import copy
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from immunis.core.display import Shown
from immunis.core.distributed import world
from immunis.core.errors import InputError, SettingsError
from immunis.core.hashing import state_digest
from immunis.core.jobs import Progress
from immunis.core.progress import with_progress
from immunis.core.records import Record
from immunis.core.settings import build
from immunis.core.settings import whole as whole_number
from immunis.data.checks import real
from immunis.data.scale import warn_if_uneven
from immunis.data.several_tasks import together
from immunis.data.split import Split
from immunis.data.task import Task, check_tasks
from immunis.methods import LinearProblem, Method, get_method
from immunis.methods.kept_primary import warns
from immunis.methods.record import Run, linear_record, network_record, placed
from immunis.methods.trainable import checked_network
from immunis.methods.weight_search import strongest
from immunis.models.find_cut import cut
from immunis.models.joined import Joined
from immunis.models.linear import (
    checked_head,
    compensated_head,
    in_dtype_of,
    least_squares_head,
    linear_layer,
    theta_and_bias,
)
from immunis.theory.gram import as_extractor, check_pair, paired_grams
from immunis.training.loop import Fit, fit
from immunis.training.paired import primary_hits
from immunis.training.settings import LENGTHS, Hardware, Training

SHARE = 0.2  # of the work left, that a training of a search is shown as: there are about five


@dataclass(frozen=True)
class Immunized(Shown):
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
    _measure: Callable[[], Record] = field(repr=False)

    @cached_property
    def record(self) -> Record:
        """The run as a record, measured on the model as it was returned."""
        record = self._measure()
        return replace(record, figures={**record.figures, "weights": state_digest(self.model)})

    @property
    def kept(self) -> bool | None:
        """False if the primary score fell by more than it may; None if it is not known."""
        return self.record.figures["primary_score"]["kept"]


@with_progress
@warns
def immunize(
    model: nn.Module | Tensor | np.ndarray,
    primary: Task,
    harmful: Task | Sequence[Task],
    method: str | None = None,
    *,
    tolerance: float | None = None,
    head: nn.Linear | str | None = None,
    training: Training | Mapping[str, Any] | None = None,
    hardware: Hardware | Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    wandb: str | None = None,
    seed: int = 0,
    progress: Progress | bool = True,
    **settings: Any,
) -> Immunized:
    """Change an extractor so that the harmful task is hard and the primary task stays easy.

    ``model`` is a square, invertible ``nn.Linear`` or matrix θ (features are ``xᵀθ``), or a network
    that ends in a linear head. ``method`` is a name that ``immunis list methods`` shows; by default
    ``probe`` for networks, ``erase`` for linear extractors. ``settings`` are its settings.

    With ``training`` (always for ``probe``), layers of the network are trained: ``training`` and
    ``hardware`` are a ``Training`` and a ``Hardware``, or their settings; the method decides what
    is left out. ``tolerance`` is how far the primary score may fall, 0.005 by default. ``folder``
    keeps the checkpoint and the curves, ``resume`` continues from there, and ``wandb`` names a
    project of Weights & Biases. Without ``training``, a linear map of the features is folded into
    the network's last layer.

    ``harmful`` is the defender's own sample of the task, or samples of several tasks. ``head`` is
    the primary head to compensate (by default the least-squares one). To train a network, it is
    the name of its head, if that cannot be found, or a new head that reads a bare encoder's pooled
    output and is trained with it.
    ``progress`` is True for a bar on a terminal and lines elsewhere, False for neither, or a
    function that is called with the method's name and the share of the work done.

    Warns with ``LostPrimaryWarning`` if the primary score fell by more than four tolerances and
    two standard errors (``methods.kept_primary``). ``result.kept`` is False then, and ``export``
    refuses.

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
    if isinstance(model, Task):
        raise InputError("model: got a Task; expected immunize(model, primary, harmful).")
    harmful = together(harmful) if isinstance(harmful, list | tuple) else harmful
    check_tasks(primary=primary, harmful=harmful)
    assert isinstance(harmful, Task)
    model = real(model) if isinstance(model, np.ndarray) else model
    network = isinstance(model, nn.Module) and not isinstance(model, nn.Linear)
    method = ("probe" if network else "erase") if method is None else method
    began, seed, chosen = time.perf_counter(), whole_number(seed, "seed"), get_method(method)

    def reporting(what: str) -> Progress:
        assert callable(progress)
        return lambda _, share: progress(what, share)

    if training is None and not (network and chosen.solve is None):
        if isinstance(head, str):
            raise InputError(f"head={head!r}: expected nn.Linear; a name goes with training= only.")
        if tolerance is not None:
            raise SettingsError("tolerance is for trained networks: give training= too.")
        configured = chosen.configure(settings)
        if not network:
            warn_if_uneven(primary, as_extractor(theta_and_bias(model, primary)[0]))
        solve: Callable[..., Immunized] = _fold if network else _solve
        return solve(
            model, (primary, harmful), chosen, configured, head, seed, reporting(method), began
        )

    configured = chosen.configure(settings, network=True)
    how = training_for(chosen, training, model, primary)
    how = how if tolerance is None else replace(how, tolerance=tolerance)
    where = build(Hardware, hardware or {}, "hardware")
    inside = ""
    if isinstance(model, nn.Module) and isinstance(head, nn.Linear):
        model, head, inside = Joined(model, head), "1", "0"
    whole = checked_network(model, primary, harmful, head, how)
    assert isinstance(model, nn.Module)

    def trained_with(
        configured: Any, report: Progress, reference: Tensor | None = None, place: Any = folder
    ) -> Fit:
        assert chosen.objective is not None
        return fit(
            whole,
            chosen.objective(configured, whole),
            primary,
            harmful,
            how,
            where,
            seed=seed,
            folder=place,
            resume=resume,
            wandb=wandb,
            identity=json.dumps([method, asdict(configured)]),
            reference=reference,
            progress=report,
        )

    def attempt(weight: float, reference: Tensor | None) -> Fit:
        name = f"{chosen.searched}-{weight:g}"
        left, told = (
            (1 - SHARE) ** next(tried),
            reporting(f"{method}, {chosen.searched} {weight:g}"),
        )
        return trained_with(
            replace(configured, **{chosen.searched: weight}),
            lambda _, share: told("", 1 - left + left * share * SHARE),
            reference,
            None if folder is None else Path(folder) / name,
        )

    def hits(found: Fit) -> Tensor:
        return primary_hits(placed(replace(whole, model=found.model), where), primary, how, True)

    searched, tried, plain = dict[str, Any](), itertools.count(), None
    if chosen.searched and getattr(configured, chosen.searched) is None:
        weight, found, without, searched = strongest(attempt, hits, how.tolerance)
        plain = replace(whole, model=without.model)
        configured = replace(configured, **{chosen.searched: weight})
    else:
        found = trained_with(configured, reporting(method))
    said = {"method": method, **asdict(configured)}
    said |= {"training": asdict(how), "hardware": asdict(where)}
    details = {k: getattr(found, k) for k in ("history", "best_step", "steps", "weights", "notes")}
    details |= {"training_seconds": found.seconds, "processes": world(), **searched}
    run = Run((primary, harmful), said, details, seed, time.perf_counter() - began)
    after = replace(whole, model=copy.deepcopy(found.model))
    trained = found.model.to(next(model.parameters()).device)
    for mine, given in zip(trained.parameters(), model.parameters(), strict=True):
        mine.requires_grad_(given.requires_grad)
    target = replace(whole, model=trained).head_layer
    assert target is not None
    measure = partial(network_record, run, whole, after, plain, how, where)
    return Immunized(trained.get_submodule(inside), target, False, measure)


def training_for(
    method: Method, given: Training | Mapping[str, Any] | None, model: Any, primary: Task
) -> Training:
    """Return how a method trains a network: as the user says, and as its own rule says else."""
    if isinstance(given, Training):
        return given
    rule = dict(method.training(model, primary)) if method.training is not None else {}
    if any((given or {}).get(name) is not None for name in LENGTHS):
        rule.pop("steps", None)
    return build(Training, {**rule, **(given or {})}, "training")


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
    new_head, exact = compensated_head(old_head, rounded, features, layer.weight.dtype)
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
