"""Immunize an extractor, linear or deep: any method in, a plain model and its primary head out."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.core.progress import Progress, silent
from immunis.core.records import Record
from immunis.core.settings import whole
from immunis.data.checks import as_tensor
from immunis.data.split import Split
from immunis.data.task import Task
from immunis.methods import LinearProblem, get_method
from immunis.methods.linear import LinearRun
from immunis.methods.network import NetworkRun, defend
from immunis.models.cut import Cut, Joined
from immunis.models.find_head import cut
from immunis.models.heads import checked_head, compensated_head, invertible, least_squares_head
from immunis.theory.gram import as_extractor, check_pair, paired_grams
from immunis.theory.scale import answer
from immunis.training.hardware import Hardware
from immunis.training.settings import Training


@dataclass(frozen=True)
class Immunized:
    """An immunized extractor.

    Attributes:
        model: a plain copy of what was given: same class, shapes, dtype and state-dict keys.
        head: the primary task's linear head; inside ``model`` where the given model had one.
        exact: whether the head compensates the change exactly (θ is invertible), so that
            primary predictions are those of the original up to rounding.
    """

    model: nn.Module
    head: nn.Linear
    exact: bool
    _run: LinearRun | NetworkRun

    @cached_property
    def record(self) -> Record:
        """The run as a record, measured on the layer as it was returned."""
        return self._run.record()


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
    """Change an extractor so that the harmful task is hard and the primary one is not.

    Args:
        model: a square, invertible ``nn.Linear`` or matrix θ (features are ``xᵀθ``); or any
            network that ends in a linear head. With ``training`` (and always for ``probe``)
            some of its layers are trained; without, a linear map is found for its features
            and folded into the linear layer that they come out of.
        primary: the task that must stay easy.
        harmful: the task that should become hard; the defender's own sample of it.
        method: one of ``immunis list``.
        head: the primary head to compensate; by default the least-squares head is. For a
            network that is trained, the name of its head where it cannot be told; or, for a bare
            encoder, the head that reads its output, pooled, which is trained with it.
        training: how to train a network: ``immunis.training.settings.Training``, or its settings.
        hardware: where to train it: ``immunis.training.hardware.Hardware``, or its settings;
            one CPU process by default.
        folder: where training keeps its checkpoint and curves; it is not locked.
        resume: go on from the checkpoint in ``folder``.
        wandb: Weights & Biases project to log training to.
        seed: seeds everything random in the method.
        progress: called with the method's name and the share of the work done, from 0 to 1.
        **settings: the method's settings; an unknown one is refused with a suggestion.

    Raises:
        InputError: for models or data that cannot be used.
        SettingsError: for an unknown method or setting, or one out of range.
        NumericalError: if the method diverges.

    >>> from immunis.datasets import digits
    >>> tasks = digits()
    >>> r = immunize(torch.eye(64), tasks.primary, tasks.harmful, method="frontier")
    >>> r.model, r.exact
    (Linear(in_features=64, out_features=64, bias=False), True)
    """
    start, seed = time.perf_counter(), whole(seed, "seed")

    def report(_: str, share: float) -> None:
        progress(method, share)

    chosen = get_method(method)
    deep = isinstance(model, nn.Module) and not isinstance(model, nn.Linear)
    if training is not None or (deep and chosen.solve is None):
        if not isinstance(model, nn.Module):
            raise InputError(f"training takes a network, got {type(model).__name__}.")
        inside = ""
        if isinstance(head, nn.Linear):
            model, head, inside = Joined(model, head), "1", "0"
        network, target, run = defend(
            model, primary, harmful, method, settings, training, hardware, head=head, seed=seed,
            folder=folder, resume=resume, wandb=wandb, progress=report,
        )  # fmt: skip
        return Immunized(network.get_submodule(inside), target, False, run)
    if isinstance(head, str):
        raise InputError(f"head={head!r}: expected nn.Linear; names go with training= only.")
    configured = chosen.configure(settings)
    assert chosen.solve is not None
    if isinstance(model, nn.Module) and not isinstance(model, nn.Linear):
        return _fold(model, primary, harmful, method, head, seed, progress, settings)
    theta, bias = _parts(model, primary)
    # A bias makes features affine in x. Then the method works on the features themselves,
    # from θ₀ = I, and its linear map is composed with the layer afterwards.
    extractor = None if bias is None else as_extractor(model)
    origin = theta if bias is None else torch.eye(len(theta), dtype=torch.float64)
    moments = paired_grams(primary, harmful, extractor)
    problem = LinearProblem(origin, *moments, (primary, harmful), extractor, seed, report)
    solution = chosen.solve(problem, configured)
    change = torch.linalg.solve(origin, solution.theta)  # T: features z become zT
    layer = _layer(model, theta @ change, None if bias is None else bias @ change)
    rounded = torch.linalg.solve(theta, layer.weight.detach().to("cpu", torch.float64).T)
    features = moments[0].transform(origin)
    old_head = least_squares_head(features) if head is None else checked_head(head, theta, primary)
    new_head, exact = compensated_head(old_head, rounded, features)
    for part in (new_head.weight, nn.utils.parameters_to_vector(new_head.parameters())):
        answer(part.detach(), 0, layer.weight.dtype, "the compensated head")
    new_head = new_head.to(layer.weight.device, layer.weight.dtype)
    done = LinearRun(
        copy.deepcopy(model), copy.deepcopy(layer), old_head, copy.deepcopy(new_head), exact,
        (primary, harmful), method, dataclasses.asdict(configured), solution.details, seed,
        time.perf_counter() - start,
    )  # fmt: skip
    report("", 1.0)
    return Immunized(layer, new_head, exact, done)


def check_foldable(whole: Cut) -> None:
    """Refuse a network into which no linear map can be folded."""
    if whole.last_linear is None:
        raise InputError(
            "the network's features are not the output of a linear layer, so no linear map can be "
            "folded into it. End the extractor with nn.Linear, or train it: give training=."
        )


def _fold(
    model: nn.Module,
    primary: Task,
    harmful: Task,
    method: str,
    head: nn.Linear | None,
    seed: int,
    progress: Progress,
    settings: Mapping[str, Any],
) -> Immunized:
    """Immunize a network's features from θ₀ = I and fold θ into the layer that makes them."""
    check_pair(primary, harmful)
    whole = cut(model, primary.train.first(2), primary.outputs)
    check_foldable(whole)
    features = _featurised(primary, whole), _featurised(harmful, whole)
    eye = torch.eye(whole.width, dtype=torch.float64)
    found = immunize(
        eye,
        features[0],
        features[1],
        method,
        head=head or whole.head_layer,
        seed=seed,
        progress=progress,
        **settings,
    )
    fresh = whole.copy()
    with torch.no_grad():
        layer = fresh.last_layer
        change = found.model.state_dict()["weight"].to(layer.weight)
        layer.weight.copy_(change @ layer.weight)
        if layer.bias is not None:
            layer.bias.copy_(change @ layer.bias)
        target = fresh.head_layer if head is None else None
        if target is not None:
            if target.bias is None and not found.exact:
                raise InputError(
                    "the network's head has no bias, which a singular map needs to be compensated; "
                    "use a strength above 0."
                )
            target.weight.copy_(found.head.weight)
            if target.bias is not None:
                target.bias.copy_(found.head.bias)
    assert isinstance(found._run, LinearRun)
    run = dataclasses.replace(found._run, given=(primary, harmful))
    return Immunized(fresh.model, target or found.head.to(layer.weight), found.exact, run)


def _featurised(task: Task, whole: Cut) -> Task:
    """The task as the network shows it: features in place of inputs."""

    @torch.no_grad()
    def read(split: Split) -> tuple[Tensor, Tensor]:
        parts = [(whole.features(x).cpu(), y) for x, y in split.batches(512)]
        return torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts])

    return task.with_data(read(task.train), None if task.test is None else read(task.test))


def _parts(model: nn.Linear | Tensor, primary: Task) -> tuple[Tensor, Tensor | None]:
    """θ (D×D) and the bias of a model, checked, in float64."""
    if isinstance(model, nn.Linear):
        theta = model.weight.detach().T
        bias = None if model.bias is None else model.bias.detach().to("cpu", torch.float64)
    elif isinstance(model, Tensor):
        theta, bias = model.detach(), None
    else:
        raise InputError(
            f"expected nn.Linear or a matrix θ, got {type(model).__name__}; linear methods "
            "immunize a linear extractor."
        )
    theta = as_tensor(theta, "θ")
    if theta.ndim != 2 or theta.shape[0] != theta.shape[1]:
        raise InputError(
            f"θ has shape {tuple(theta.shape)}; linear methods need a square one. Reduce the "
            "inputs first, or pad the layer."
        )
    if not theta.is_floating_point() or not bool(torch.isfinite(theta).all()):
        raise InputError(f"θ (dtype {theta.dtype}) must hold finite floating-point numbers.")
    if primary.input_shape != (len(theta),):
        raise InputError(
            f"θ reads {len(theta)} features, but {primary.name} inputs have shape "
            f"{primary.input_shape} per sample. Flatten the inputs, or pass a fitting θ."
        )
    theta = theta.to("cpu", torch.float64)
    if not invertible(theta):
        sigma = torch.linalg.svdvals(theta)
        raise InputError(
            f"θ is singular (singular values from {float(sigma[0]):.3g} down to "
            f"{float(sigma[-1]):.3g}): it has already thrown features away. Pass an invertible θ."
        )
    return theta, bias


def _layer(model: nn.Linear | Tensor, theta: Tensor, bias: Tensor | None) -> nn.Linear:
    like = model.weight if isinstance(model, nn.Linear) else model
    layer = nn.Linear(theta.shape[0], theta.shape[1], bias is not None, like.device, like.dtype)
    with torch.no_grad():
        layer.weight.copy_(answer(theta.T, 0, like.dtype, "the immunized θ"))
        if bias is not None:
            layer.bias.copy_(answer(bias, 0, like.dtype, "the immunized bias"))
    return layer.requires_grad_(False).eval()
