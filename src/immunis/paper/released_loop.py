"""The paper's training loop as its released code runs it, many runs at once.

The loop draws mini-batches of paired rows and steps with Adam, in float64. Features are
``Z = XWᵀ + 1bᵀ``; the gradients of the regularizers with respect to W pass an inverse Gram matrix.
It differs from Algorithm 1 as printed in these ways, kept on purpose (``methods/condition.py`` is
the corrected version):

* the inverse multiplies the outputs of W, not its inputs, and not the gradient of b;
* a batch has fewer rows than features, so σ_min in R_ill is the noise floor 10⁻⁶ and drops out:
  ``R_ill = 2K/‖S‖²_F``, which falls as the *norm* of the harmful features grows;
* K is the last axis of the inputs: 79 on House Prices, 28 (not 784) on images of 28×28 pixels.

The released file ``utils/train_imagenet.py`` has a class ``ImmuLoss`` that nothing in the tree
imports. Its loss types are objectives here. They keep the primary loss, take no inverse, and K is
the width of the features.

``released_pulls`` has the gradients of the regularizers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_type_hints

import torch
from torch import Tensor

from immunis.core.errors import InputError
from immunis.core.settings import check, require_least
from immunis.paper.released_pulls import (
    ill_pull,
    kappa_pull,
    log_kappa_pull,
    printed_inverse,
    well_pull,
)

IMMU_LOSS = ("r_ill_with_loss", "imma_released", "opt_kappa_released")  # class ImmuLoss
Objective = Literal[
    "algorithm_1", "r_ill", "imma", "opt_kappa", "opt_log_kappa",
    "r_ill_with_loss", "imma_released", "opt_kappa_released",
]  # fmt: skip
INNER_STEPS, INNER_STEP = 30, 1e-4  # of IMMA: the only inner loop in the released files has these


@dataclass(frozen=True)
class Settings:
    """Settings of the loop; the defaults are the released configuration for House Prices.

    Attributes:
        objective: the loss and both regularizers; λ_H·R_ill; IMMA; ``κ(H_P) − κ(H_H)`` of the
            batch; or the same of log κ, which the released function for κ returns. The others are
            the loss types ``max_only``, ``imma`` and ``kappa`` of ``ImmuLoss``: the primary loss
            plus λ_H·R_ill; minus the harmful loss of the same head; plus
            ``λ_P·log κ(H_P) + λ_H/log κ(H_H)``.
        lambda_primary: weight of R_well.
        lambda_harmful: weight of R_ill.
        ridge_primary: added to the primary Gram matrix before it is inverted.
        ridge_harmful: the same for the harmful one.
        width: K of both regularizers.
        bias: whether the layer has one.
        processes: share the rows of an epoch, take a batch each, and average their gradients.
    """

    objective: Objective = "algorithm_1"
    step: float = 0.005
    lambda_primary: float = 100.0
    lambda_harmful: float = 1e7
    ridge_primary: float = 1.0
    ridge_harmful: float = 1.0
    loss: Literal["squared", "logistic"] = "squared"
    batch: int = 64  # an incomplete last batch is dropped
    width: int = 79
    bias: bool = True
    processes: int = 1

    def __post_init__(self) -> None:
        """Check types and ranges."""
        check(vars(self), get_type_hints(Settings), "the released loop")
        require_least(self, 0, "step", "ridge_primary", "ridge_harmful", above=True)
        require_least(self, 0, "lambda_primary", "lambda_harmful")
        require_least(self, 2, "batch")
        require_least(self, 1, "width", "processes")


class Start(NamedTuple):
    """The first weights of a run: W (outputs × inputs), b, and both heads ω and w (D each)."""

    weight: Tensor
    bias: Tensor
    omega: Tensor
    probe: Tensor


def initial(dimension: int, seed: int) -> Start:
    """Return W and b as ``nn.Linear`` draws them, uniform within ``±1/√D``, and normal heads."""
    generator = torch.Generator().manual_seed(seed)
    layer = torch.rand(dimension + 1, dimension, generator=generator, dtype=torch.float64)
    heads = torch.randn(2, dimension, generator=generator, dtype=torch.float64)
    weight = (2 * layer - 1) / math.sqrt(dimension)
    return Start(weight[1:], weight[0], *heads)


class Side(NamedTuple):
    """One task of all runs: inputs (N×D), and of each run the rows it trains on and their targets.

    The rows of a run pair up with those of its other task. Targets of a logistic loss are 0 and 1.
    """

    inputs: Tensor
    rows: Sequence[Tensor]
    targets: Sequence[Tensor]


class Batch(NamedTuple):
    """A batch of every run: inputs (R×n×D) and targets (R×n) of both tasks."""

    x_p: Tensor
    y_p: Tensor
    x_h: Tensor
    y_h: Tensor


def run(
    starts: Sequence[Start],
    primary: Side,
    harmful: Side,
    settings: Settings,
    marks: Sequence[int],
    seeds: Sequence[int],
    device: str = "cpu",
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Train R runs and yield ``(run, epoch, W, b)`` after each epoch in ``marks``, which rise.

    A run that has done its epochs steps on with the others but is not read again. The seed of a
    run decides the order of its rows.

    Raises:
        InputError: if rows do not pair up or do not fill one batch for each process.
    """
    weight, bias, omega, probe = (
        torch.stack(each).to(device, torch.float64) for each in zip(*starts, strict=True)
    )
    if not settings.bias:
        bias.zero_()
    sides = primary, harmful
    counts, others = ([len(rows) for rows in side.rows] for side in sides)
    per_epoch = [count // settings.processes // settings.batch for count in counts]
    if counts != others or not all(per_epoch):
        raise InputError(
            f"{counts} primary and {others} harmful rows: the loop pairs them one to one and needs "
            f"at least {settings.processes} × {settings.batch} of each."
        )
    length = marks[-1] * max(per_epoch)
    orders = [
        _order(count, length, settings, seed) for count, seed in zip(counts, seeds, strict=True)
    ]

    def drawn(values: Sequence[Tensor]) -> Tensor:  # T×P×R×n
        return torch.stack([each[order] for each, order in zip(values, orders, strict=True)], 2).to(
            device
        )

    inputs = [side.inputs.to(device) for side in sides]
    rows = [drawn(side.rows) for side in sides]
    targets = [drawn(side.targets).double() for side in sides]
    due: dict[int, list[tuple[int, int]]] = {}
    for index, each in enumerate(per_epoch):
        for mark in marks:
            due.setdefault(mark * each, []).append((index, mark))
    optimizer = torch.optim.Adam([weight, bias, omega], lr=settings.step, fused=True)
    for step in range(length):
        found = []
        for part in range(settings.processes):
            x_p, x_h = (x[each[step, part]].double() for x, each in zip(inputs, rows, strict=True))
            y_p, y_h = (each[step, part] for each in targets)
            batch = Batch(x_p, y_p, x_h, y_h)
            found.append(_gradients(Start(weight, bias, omega, probe), batch, settings, not step))
        for values, parts in zip((weight, bias, omega), zip(*found, strict=True), strict=True):
            values.grad = None if parts[0] is None else sum(parts[1:], parts[0]) / len(parts)
        optimizer.step()
        for index, mark in due.get(step + 1, ()):
            yield index, mark, weight[index].clone(), bias[index].clone()


def _order(count: int, steps: int, settings: Settings, seed: int) -> Tensor:
    """Return the rows of every step and process (T×P×n): each epoch is shuffled and shared out."""
    generator = torch.Generator().manual_seed(seed)
    share = count // settings.processes
    each = share // settings.batch
    epochs = []
    for _ in range(math.ceil(steps / each)):
        own = torch.randperm(count, generator=generator)[: share * settings.processes]
        own = own.reshape(share, settings.processes)[: each * settings.batch]
        epochs.append(own.reshape(each, settings.batch, settings.processes).mT)
    return torch.cat(epochs)[:steps]


def _gradients(
    at: Start, batch: Batch, settings: Settings, first: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of W, b and ω; None for what does not train.

    The objective gives pulls, its gradients at the features Z of a task. A pull G is ``GᵀX`` to W,
    preconditioned where it comes from a regularizer of Algorithm 1, and ``Gᵀ1`` to b.
    """
    inputs, head = (batch.x_p, batch.x_h), None
    pulls: list[tuple[int, Tensor, float | None]] = []  # task, pull, and the ridge of its inverse
    z_p, z_h = z = [x @ at.weight.mT + at.bias[:, None] for x in inputs]
    if settings.objective in ("algorithm_1", "r_ill"):
        ill = settings.lambda_harmful * ill_pull(z_h, settings.width)
        pulls = [(1, ill, settings.ridge_harmful)]
    elif settings.objective != "imma_released":
        pulls = [(task, pull, None) for task, pull in enumerate(_plain(at, batch, z, settings))]
    if settings.objective in ("algorithm_1", *IMMU_LOSS):
        head = torch.zeros_like(at.omega)
        losses = [(0, 1.0, batch.y_p)]
        if settings.objective == "imma_released":  # its counter starts at 1 and is halved
            losses.append((1, 1.0 if first else -1.0, batch.y_h))
        for task, sign, targets in losses:
            residual = sign * _residual(_outputs(z[task], at.omega), targets, settings)[0]
            head += _outputs(z[task].mT, residual)
            pulls.append((task, residual[..., None] * at.omega[:, None], None))
    if settings.objective == "algorithm_1":
        well = settings.lambda_primary * well_pull(z_p, settings.width)
        pulls.append((0, well, settings.ridge_primary))
    left, shift = [torch.zeros_like(z_p), torch.zeros_like(z_h)], torch.zeros_like(at.bias)
    for task, pull, ridge in pulls:
        left[task] += pull if ridge is None else printed_inverse(pull, inputs[task], ridge)
        shift += pull.sum(1)
    weight = torch.cat(left, 1).mT @ torch.cat(inputs, 1)
    return weight, shift if settings.bias else None, head


def _plain(
    at: Start, batch: Batch, z: Sequence[Tensor], settings: Settings
) -> tuple[Tensor, Tensor]:
    """Return the pulls on both tasks of an objective without an inverse, but for its loss."""
    if settings.objective == "imma":
        return imma_pulls(at, batch, settings)
    if settings.objective == "opt_kappa":
        return kappa_pull(z[0]), -kappa_pull(z[1])
    if settings.objective == "r_ill_with_loss":
        ill = ill_pull(z[1], z[1].shape[-1])
        return torch.zeros_like(z[0]), settings.lambda_harmful * ill
    (_, primary), (log, harmful) = map(log_kappa_pull, z)
    if settings.objective == "opt_log_kappa":
        return primary, -harmful
    return settings.lambda_primary * primary, -settings.lambda_harmful / log**2 * harmful


def imma_pulls(at: Start, batch: Batch, settings: Settings) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``L(D_P, ω, θ*) − L(D_H, w, θ*)`` at the features of both tasks.

    θ* is θ after the attacker's descent on ``L(D_H, w, θ)``; the gradient passes through it. Such a
    step adds ``−αw(Xᵀr)ᵀ`` to W and ``−αw(1ᵀr)`` to b for the residual r. So the descent is one
    of the outputs ``Zw`` and ``Zω`` alone, which n×n matrices carry out.
    """
    ones, o = float(settings.bias), []
    mixed, own = (x @ batch.x_h.mT + ones for x in (batch.x_p, batch.x_h))
    for x, head in ((batch.x_p, at.omega), (batch.x_h, at.probe)):
        o.append(_outputs(x, _outputs(at.weight.mT, head)) + (at.bias * head).sum(1, keepdim=True))
    cross, size = ((head * at.probe).sum(1, keepdim=True) for head in (at.omega, at.probe))
    (o_p, o_h), moved, slopes = o, torch.zeros_like(o[1]), []
    for _ in range(INNER_STEPS):
        residual, slope = _residual(o_h, batch.y_h, settings)
        slopes.append(INNER_STEP * slope)
        moved = moved + INNER_STEP * residual
        o_h = o_h - size * _outputs(own, INNER_STEP * residual)
    pull_p, _ = _residual(o_p - cross * _outputs(mixed, moved), batch.y_p, settings)
    pull_h = -_residual(o_h, batch.y_h, settings)[0]
    through = cross * _outputs(mixed.mT, pull_p)
    for slope in reversed(slopes):  # the chain rule, from the last step to the first
        pull_h = pull_h - slope * (through + size * _outputs(own, pull_h))
    return pull_p[..., None] * at.omega[:, None], pull_h[..., None] * at.probe[:, None]


def _outputs(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return ``Mv`` of every run."""
    return (matrix @ vector[..., None])[..., 0]


def _residual(outputs: Tensor, targets: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
    """Return the gradient of the mean loss at the outputs, and its derivative there."""
    count = targets.shape[1]
    if settings.loss == "squared":
        return 2 / count * (outputs - targets), torch.full_like(outputs, 2 / count)
    chance = torch.sigmoid(outputs)
    return (chance - targets) / count, chance * (1 - chance) / count
