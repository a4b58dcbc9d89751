"""Second moments of features and labels, streamed in float64.

The Hessian of ℓ2 linear probing is the feature Gram matrix ``K = ZᵀZ`` (paper, eq. 6). The rest of
the linear theory needs only ``ZᵀY``, ``YᵀY`` and the means: one pass collects all in O(D²) memory.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from immunis.core.errors import InputError, NumericalError
from immunis.data.checks import EPS64, as_tensor, epsilon_of
from immunis.data.split import Split
from immunis.data.task import Task
from immunis.theory.scale import LARGEST_MATRIX, check_size, real

Extractor = Callable[[Tensor], Tensor]
CHUNK_BYTES = 1 << 25


@dataclass
class Gram:
    """Moments of ``n`` samples of features ``z`` (D) and targets ``y`` (C), in float64.

    Held as means and centred scatter matrices, which merge without cancellation
    (Chan, Golub and LeVeque 1983): ``S = Σ (z−μ)(z−μ)ᵀ``, and likewise for ``zyᵀ``, ``yyᵀ``.
    """

    samples: int
    mean: Tensor
    scatter: Tensor
    target_mean: Tensor
    cross_scatter: Tensor
    target_scatter: Tensor
    epsilon: float = EPS64

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return self.scatter.shape[0]

    def matrix(self, *, center: bool = False) -> Tensor:
        """Return ``K = Σ zzᵀ`` (D×D), about the mean if ``center``.

        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> gram_of(x).matrix().tolist()
        [[2.0, 2.0], [2.0, 4.0]]
        """
        if center:
            return self.scatter.clone()
        return torch.outer(self.mean, self.mean).mul_(self.samples).add_(self.scatter)

    def cross(self, *, center: bool = False) -> Tensor:
        """Return ``B = Σ zyᵀ`` (D×C), about the means if ``center``."""
        if center:
            return self.cross_scatter.clone()
        return self.cross_scatter + self.samples * torch.outer(self.mean, self.target_mean)

    def add(self, features: Tensor, targets: Tensor | None = None) -> None:
        """Take in a block of features (n×D) and targets (n×C), in place, without D² more memory."""
        z, y, epsilon = _block(features, targets)
        self._check_widths(z.shape[1], y.shape[1])
        (z, mean), (y, target_mean) = _centred(z), _centred(y)
        self.scatter.addmm_(z.T, z)
        self.cross_scatter.addmm_(z.T, y)
        self.target_scatter.addmm_(y.T, y)
        self._join(len(z), mean, target_mean, epsilon)

    def merge(self, other: Gram) -> Gram:
        """Return the moments of both sample sets together."""
        self._check_widths(*other.cross_scatter.shape)
        total = copy.deepcopy(self)
        total.scatter += other.scatter
        total.cross_scatter += other.cross_scatter
        total.target_scatter += other.target_scatter
        total._join(other.samples, other.mean, other.target_mean, other.epsilon)
        return total

    def _check_widths(self, features: int, targets: int) -> None:
        if (features, targets) != (held := tuple(self.cross_scatter.shape)):
            raise InputError(
                f"cannot merge {features} features and {targets} targets into moments of "
                f"{held[0]} features and {held[1]} targets."
            )

    def _join(self, samples: int, mean: Tensor, target_mean: Tensor, epsilon: float) -> None:
        """Account for the distance between the means of two sets whose scatters were added."""
        total = self.samples + samples
        weight, share = self.samples * samples / total, samples / total
        delta, target_delta = mean - self.mean, target_mean - self.target_mean
        self.scatter.addr_(delta, delta, alpha=weight)
        self.cross_scatter.addr_(delta, target_delta, alpha=weight)
        self.target_scatter.addr_(target_delta, target_delta, alpha=weight)
        self.mean += share * delta
        self.target_mean += share * target_delta
        self.samples, self.epsilon = total, max(self.epsilon, epsilon)

    def transform(self, linear: Tensor) -> Gram:
        """Return the moments of ``zᵀ·linear`` for a matrix ``linear`` (D×E)."""
        linear = real(linear).detach().to("cpu", torch.float64)
        if len(linear) != self.dimension:
            came = f"a map of shape {tuple(linear.shape)}"
            raise InputError(f"{came} came to {self.dimension} features.")
        check_size(linear, "numbers of the map", LARGEST_MATRIX)
        mean, scatter = linear.T @ self.mean, symmetric(linear.T @ self.scatter @ linear)
        for moment in (mean.square(), scatter):
            check_size(moment, "moments of the mapped features", LARGEST_MATRIX, NumericalError)
        return dataclasses.replace(
            self, mean=mean, scatter=scatter, cross_scatter=linear.T @ self.cross_scatter
        )


def symmetric(matrix: Tensor) -> Tensor:
    """Return ``(A + Aᵀ)/2``: products such as θᵀKθ are symmetric up to rounding only."""
    return (matrix + matrix.mT) / 2


def _block(features: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor, float]:
    """Return features and targets in float64, checked, and the precision of the features."""
    features = as_tensor(features, "features")
    if features.ndim != 2 or not features.numel():
        raise InputError(
            f"features have shape {tuple(features.shape)}; expected (samples, features) with at "
            "least one of each. Flatten images, or pass them through an extractor."
        )
    empty = features.new_zeros(len(features), 0)
    targets = empty if targets is None else as_tensor(targets, "targets")
    if targets.ndim != 2 or len(targets) != len(features):
        expected = f"expected ({len(features)}, outputs), one row for each sample"
        raise InputError(f"targets have shape {tuple(targets.shape)}; {expected}.")
    z, y = (values.detach().to("cpu", torch.float64) for values in (features, targets))
    check_size(z, "features")
    check_size(y, "targets")
    return z, y, epsilon_of(features.dtype)


def _centred(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return values about their mean, and the mean; a constant column becomes exactly zero."""
    moved = values - values[0]  # first: the mean of equal numbers rounds
    mean = moved.mean(0)
    return moved.sub_(mean), values[0] + mean


def gram_of(features: Tensor, targets: Tensor | None = None) -> Gram:
    """Return the moments of one block of features (n×D) and optional targets (n×C).

    Raises ``InputError`` if they are not finite real matrices whose squares fit float64.
    """
    z, y, epsilon = _block(features, targets)
    d, c, zeros = z.shape[1], y.shape[1], z.new_zeros
    total = Gram(0, zeros(d), zeros(d, d), zeros(c), zeros(d, c), zeros(c, c), epsilon)
    total.add(z, y)
    return total


def gram(source: Any, extractor: Extractor | None = None) -> Gram:
    """Stream data through an extractor into its moments, in O(D²) memory plus a chunk of 32 MB.

    ``source`` is a ``Task`` (its training data, with encoded labels), features as a tensor or
    array, or a ``Dataset`` or ``DataLoader`` of ``(inputs, labels)``. Raises ``InputError`` on NaN,
    infinities, no samples, or inputs that are not (samples, features).
    """
    task = source if isinstance(source, Task) else None
    if isinstance(source, Tensor | np.ndarray):
        if not source.ndim:
            raise InputError("a single number came; expected features (samples, features).")
        source = Split((source, torch.zeros(len(source))), "features")
    elif task is not None:
        source = task.train
    split = source if isinstance(source, Split) else Split(source, "data")
    first, _ = next(split.batches(1))
    size = max(256, CHUNK_BYTES // (8 * max(1, first[0].numel())))
    total: Gram | None = None
    for inputs, labels in split.batches(size):
        features = inputs if extractor is None else extractor(inputs)
        targets = None if task is None else task.targets(labels)
        if total is None:
            total = gram_of(features, targets)
        else:
            total.add(features, targets)
    assert total is not None  # a Split never streams fewer than two samples
    if task is not None:
        total.epsilon = max(total.epsilon, task.epsilon)
    return total


def as_extractor(model: nn.Module | Tensor | None) -> Extractor:
    """Return the feature map of a model, of a matrix θ (``x ↦ xᵀθ``), or the identity.

    A linear layer is applied in float64; any other module in the dtype of its parameters,
    in evaluation mode and without gradients.
    """
    if model is None:
        return lambda inputs: inputs
    if isinstance(model, Tensor | nn.Linear):
        theta = model.weight if isinstance(model, nn.Linear) else real(model).T
        weight = theta.detach().to("cpu", torch.float64)
        bias = getattr(model, "bias", None)
        bias = None if bias is None else bias.detach().to("cpu", torch.float64)

        def linear(inputs: Tensor) -> Tensor:
            if inputs.ndim != 2 or inputs.shape[1] != weight.shape[1]:
                came = f"the inputs have shape {tuple(inputs.shape[1:])} per sample"
                raise InputError(f"the extractor reads {weight.shape[1]} features, but {came}.")
            return nn.functional.linear(inputs.to(torch.float64), weight, bias)

        return linear
    if isinstance(model, nn.Module):
        if model.training:
            raise InputError("the model is in training mode; call model.eval() first.")
        parameter = next(model.parameters(), torch.zeros(()))

        @torch.no_grad()
        def extract(inputs: Tensor) -> Tensor:
            return model(inputs.to(parameter.device, parameter.dtype))

        return extract
    raise InputError(f"expected a matrix θ or an nn.Module, got {type(model).__name__}.")


def check_pair(primary: Task, harmful: Task) -> None:
    """Raise ``InputError`` unless both are tasks that one extractor can read."""
    for task in (primary, harmful):
        if not isinstance(task, Task):
            got = type(task).__name__
            raise InputError(f"expected a Task, got {got}; wrap data as Task(train=(X, y)).")
    if primary.input_shape != harmful.input_shape:
        raise InputError(
            f"{primary.name} inputs have shape {primary.input_shape} per sample, {harmful.name} "
            f"inputs {harmful.input_shape}; one extractor must read both."
        )


def paired_grams(
    primary: Task, harmful: Task, extractor: Extractor | None = None
) -> tuple[Gram, Gram]:
    """Stream both tasks into moments, refusing pairs that cannot be compared."""
    check_pair(primary, harmful)
    grams = gram(primary, extractor), gram(harmful, extractor)
    check_moments(primary.name, grams[0])
    check_moments(harmful.name, grams[1])
    return grams


def check_moments(name: str, moments: Gram) -> None:
    """Raise ``InputError`` if every feature is zero: there is no κ."""
    if not bool(moments.matrix().any()):
        raise InputError(f"{name}: every feature of every sample is zero.")
