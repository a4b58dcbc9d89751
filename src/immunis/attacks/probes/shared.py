"""What probes on frozen features share: least squares by descent, and mini-batch training."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from immunis.attacks.contract import Features, Meter, Point, checkpoints, count_flops
from immunis.theory.scale import check_size


def least_squares_curve(
    features: Features,
    path: Callable[[Tensor, Tensor], Iterator[Tensor]],
    bias: bool,
    meter: Meter | None = None,
    products: int = 2,
) -> list[Point]:
    """Follow a descent path on ``‖Zw − Y‖²`` and score it at the checkpoints.

    ``path(H, B)`` yields the iterates w₀, w₁, ... for ``H = ZᵀZ/n`` and ``B = ZᵀY/n``. With
    ``bias`` features and targets are centred first, which is what a free intercept amounts to.
    ``products`` is how many products with H a step of the path makes.
    """
    meter = meter or Meter(features.arena)
    z, y = features.z.double(), features.targets()
    check_size(z, "features")
    check_size(y, "targets")
    shift = z.mean(0) if bias else torch.zeros_like(z[0])
    offset = y.mean(0) if bias else torch.zeros_like(y[0])
    (hessian, cross), setup = count_flops(lambda: _moments(z - shift, y - offset))
    budget = features.arena.budget
    marks, per_step = set(checkpoints(budget)), 2.0 * hessian.numel() * cross.shape[1] * products
    for step, w in enumerate(path(hessian, cross)):
        if step in marks:
            meter.point(
                step,
                step * len(z),
                setup + step * per_step,
                lambda w=w: features.scores(lambda x: (x.double() - shift) @ w + offset),  # type: ignore[misc]
            )
        if step >= budget:
            break
    return meter.points


def _moments(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return z.T @ z / len(z), z.T @ y / len(z)


def minibatch_curve(
    features: Features,
    probe: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: int = 256,
    meter: Meter | None = None,
) -> list[Point]:
    """Train a probe on mini-batches of features and score it at the checkpoints.

    Regression targets are standardised for training, so that step sizes do not depend on units.
    """
    arena, meter = features.arena, meter or Meter(features.arena)
    generator, marks = arena.generator(), set(checkpoints(arena.budget))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arena.budget)
    units = Units(features.y, features.kind)
    z, y = features.z.float(), units.strip(features.y)
    flops = seen = 0.0

    def train(rows: Tensor) -> None:
        optimizer.zero_grad()
        loss_of(probe(z[rows]), y[rows], features.kind).backward()
        optimizer.step()

    def predict(x: Tensor) -> Tensor:
        probe.eval()
        outputs = units.restore(probe(x.float()))
        probe.train()
        return outputs

    probe.train()
    rows, order = min(batch, len(z)), torch.empty(0, dtype=torch.int64)
    for step in range(1, arena.budget + 1):
        if len(order) < rows:
            order = torch.randperm(len(z), generator=generator)
        taken, order = order[:rows], order[rows:]
        if step == 1:
            _, flops = count_flops(lambda taken=taken: train(taken))  # type: ignore[misc]
        else:
            train(taken)
        schedule.step()
        seen += rows
        if step in marks:
            meter.point(step, int(seen), step * flops, lambda: features.scores(predict))
    return meter.points


class Units:
    """Mean and deviation of regression targets, taken off for training and put back after."""

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


def loss_of(outputs: Tensor, labels: Tensor, kind: str) -> Tensor:
    """Cross-entropy for classes, mean squared error for targets."""
    if kind == "classification":
        return functional.cross_entropy(outputs, labels)
    return functional.mse_loss(outputs, labels.to(outputs))


def linear_probe(features: Features) -> nn.Linear:
    """A linear probe that starts at zero."""
    probe = nn.Linear(features.dimension, features.outputs)
    nn.init.zeros_(probe.weight)
    nn.init.zeros_(probe.bias)
    return probe


def one_point(
    features: Features, flops: float, predict: Callable[[Tensor], Tensor], meter: Meter
) -> list[Point]:
    """The curve of a closed-form attack: one step that sees every sample once."""
    meter.point(1, features.samples, flops, lambda: features.scores(predict))
    return meter.points
