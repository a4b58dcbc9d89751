"""How probes learn: by one solve, by descent or in batches; ``tuning`` trains networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from immunis.attacks.contract import Arena, Step, checkpoints, count_flops
from immunis.attacks.features import Features, Map, Scores
from immunis.data.checks import check_size

BATCH = 256  # of features


def one_step(features: Features, flops: float, predict: Map) -> list[Step]:
    """Return the curve of a closed-form attack: one step that sees every sample once."""
    scores = partial(features.scores, predict)
    return [Step(1, features.samples, features.spent + flops, scores)]


def least_squares(
    features: Features,
    path: Callable[[Tensor, Tensor], Iterator[Tensor]],
    bias: bool = True,
    products: int = 2,
    spent: float = 0.0,
) -> Iterator[Step]:
    """Follow a descent path on ``‖Zw − Y‖²`` and yield a step at every checkpoint.

    ``path(H, B)`` yields the iterates w₀, w₁, ... for ``H = ZᵀZ/n`` and ``B = ZᵀY/n``, with
    ``products`` products with H for each. With ``bias`` features and targets are centred first,
    which equals a free intercept. ``spent`` are operations made beforehand.
    """
    z, y = features.z.double(), features.targets()
    check_size(z, "features")
    check_size(y, "targets")
    shift = z.mean(0) if bias else torch.zeros_like(z[0])
    offset = y.mean(0) if bias else torch.zeros_like(y[0])

    def moments() -> tuple[Tensor, Tensor]:
        left, right = (z - shift).T, y - offset
        return left @ left.T / len(z), left @ right / len(z)

    def predict(w: Tensor, x: Tensor) -> Tensor:
        return (x.double() - shift) @ w + offset

    (hessian, cross), setup = count_flops(moments)
    budget, per_step = features.arena.budget, 2.0 * hessian.numel() * cross.shape[1] * products
    marks = set(checkpoints(budget))
    for step, w in enumerate(path(hessian, cross)):
        if step in marks:
            flops = features.spent + spent + (setup + step * per_step)
            scores = partial(features.scores, partial(predict, w))
            yield Step(step, step * len(z), flops, scores)
        if step >= budget:
            return


def in_batches(
    arena: Arena,
    optimizer: torch.optim.Optimizer,
    train: Callable[[Tensor, torch.Generator], None],
    scores: Callable[[], Scores],
    rows: Tensor,
    size: int,
    spent: float,
    warm_up: float = 0.0,
) -> Iterator[Step]:
    """Call ``train`` on shuffled batches of rows; yield checkpoints, in a pilot the last alone.

    Rates rise linearly for a share ``warm_up`` of the steps and then fall as a cosine. A batch that
    does not fit the memory is halved, and the arena's notes say so.
    """
    budget, generator = arena.budget, arena.generator()
    rising = warm_up * budget

    def rate(done: int) -> float:
        return min(1.0, (done + 1) / (rising + 1)) * (1 + math.cos(math.pi * done / budget)) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    marks, order = {budget} if arena.pilot else set(checkpoints(budget)), rows[:0]
    size, flops, step, seen = min(size, len(rows)), 0.0, 0, 0
    counter = FlopCounterMode(display=False)
    while step < budget:
        if len(order) < size:
            order = rows[torch.randperm(len(rows), generator=generator)]
        batch, order = order[:size], order[size:]
        try:
            with nullcontext() if flops else counter:
                train(batch, generator)
            flops = flops or counter.get_total_flops() / size
        except (MemoryError, torch.OutOfMemoryError):
            if size == 1:
                raise
            size //= 2
            arena.notes.append(f"out of memory: continued with batches of {size}")
            continue
        schedule.step()
        step, seen = step + 1, seen + size
        if step in marks:
            yield Step(step, seen, spent + seen * flops, scores)


def minibatches(
    features: Features, probe: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[Step]:
    """Train a probe on mini-batches of features.

    Regression targets are standardised for training, so that step sizes do not depend on units.
    """
    units = Units(features.y, features.kind)
    z, y = features.z.float(), units.strip(features.y)

    def train(rows: Tensor, _: torch.Generator) -> None:
        optimizer.zero_grad()
        loss_of(probe(z[rows]), y[rows], features.kind).backward()
        optimizer.step()

    def predict(x: Tensor) -> Tensor:
        probe.eval()
        outputs = units.restore(probe(x.float()))
        probe.train()
        return outputs

    probe.train()
    rows, scores = torch.arange(len(z)), partial(features.scores, predict)
    return in_batches(features.arena, optimizer, train, scores, rows, BATCH, features.spent)


def train_linear(
    features: Features,
    rate: float,
    *before: nn.Module,
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam,
    **options: Any,
) -> Iterator[Step]:
    """Train a linear probe that starts at zero, behind the layers ``before``."""
    last = nn.Linear(features.dimension, features.outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    probe = nn.Sequential(*before, last)
    return minibatches(features, probe, optimizer(probe.parameters(), lr=rate, **options))  # type: ignore[call-arg]


def train_linears(
    features: Features,
    rates: Sequence[float],
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam,
    **options: Any,
) -> Iterator[list[Step]]:
    """Train a linear probe that starts at zero for each rate; yield the steps of all.

    One product with a batch serves all probes. The gradient of the sum of their losses is, for
    each, that of its own.
    """
    count, outputs, units = len(rates), features.outputs, Units(features.y, features.kind)
    z, y = features.z.float(), units.strip(features.y)
    weights = [torch.zeros(outputs, features.dimension, requires_grad=True) for _ in rates]
    biases = [torch.zeros(outputs, requires_grad=True) for _ in rates]
    groups = [{"params": list(p), "lr": r} for *p, r in zip(weights, biases, rates, strict=True)]
    descent = optimizer(groups, **options)

    def train(rows: Tensor, _: torch.Generator) -> None:
        descent.zero_grad()
        found = functional.linear(z[rows], torch.cat(weights), torch.cat(biases))
        labels = y[rows].repeat_interleave(count, 0)
        (count * loss_of(found.view(-1, outputs), labels, features.kind)).backward()
        descent.step()

    def predict(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
        return units.restore(functional.linear(x.float(), weight, bias))

    probes = [partial(predict, *probe) for probe in zip(weights, biases, strict=True)]
    calls = [partial(features.scores, probe) for probe in probes]
    rows = torch.arange(len(z))
    for step in in_batches(features.arena, descent, train, calls[0], rows, BATCH, 0.0):
        flops = features.spent + step.flops / count
        yield [step._replace(flops=flops, scores=call) for call in calls]


class Units:
    """Mean and deviation of regression targets, removed for training and restored after."""

    def __init__(self, labels: Tensor, kind: str) -> None:
        self.mean: Tensor | None = None  # classes have no units
        if kind == "regression":
            self.mean, deviation = labels.mean(0), labels.std(0)
            self.scale = torch.where(deviation > 0, deviation, 1.0)

    def strip(self, labels: Tensor) -> Tensor:
        """Return targets in units of their deviation; class labels as they are."""
        return labels if self.mean is None else (labels - self.mean) / self.scale

    def restore(self, outputs: Tensor) -> Tensor:
        """Return outputs in the targets' own units."""
        return outputs if self.mean is None else outputs.double() * self.scale + self.mean


def loss_of(outputs: Tensor, labels: Tensor, kind: str, smoothing: float = 0.0) -> Tensor:
    """Return cross-entropy for classes, of smoothed labels if asked; squared error for targets."""
    if kind == "classification":
        return functional.cross_entropy(outputs, labels, label_smoothing=smoothing)
    return functional.mse_loss(outputs, labels.to(outputs))
