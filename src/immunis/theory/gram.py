"""Second moments of features and labels, streamed in float64.

The Hessian of ℓ2 linear probing is the feature Gram matrix ``K = ZᵀZ`` (paper, eq. 6).
Everything else in the linear theory (ρ, least-squares heads, concept erasure) needs only
``ZᵀY``, ``YᵀY`` and the means beside it, so one pass over the data collects them all in
O(D²) memory, whatever the number of samples.
"""

from __future__ import annotations

import dataclasses
import functools
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
        """Take in a block of features (n×D) and targets (n×C), in place.

        Needs memory for the block only: nothing of size D² is made beside what is held.

        Raises:
            InputError: if the block is not a finite real matrix whose squares fit float64.
        """
        z, y, epsilon = _block(features, targets)
        if (z.shape[1], y.shape[1]) != tuple(self.cross_scatter.shape):
            raise InputError(
                f"a block of {z.shape[1]} features and {y.shape[1]} targets came to moments of "
                f"{self.dimension} and {len(self.target_mean)}."
            )
        self._take(z, y, epsilon)

    def _take(self, z: Tensor, y: Tensor, epsilon: float) -> None:
        (z, mean), (y, target_mean) = _centred(z), _centred(y)
        self.scatter.addmm_(z.T, z)
        self.cross_scatter.addmm_(z.T, y)
        self.target_scatter.addmm_(y.T, y)
        self.epsilon = max(self.epsilon, epsilon)
        self._join(len(z), mean, target_mean)

    def merge(self, other: Gram) -> Gram:
        """Return the moments of both sample sets together."""
        if self.scatter.shape != other.scatter.shape or (
            self.target_scatter.shape != other.target_scatter.shape
        ):
            raise InputError(
                f"cannot merge Grams of {self.dimension} and {other.dimension} features, "
                f"{len(self.target_mean)} and {len(other.target_mean)} targets."
            )
        total = dataclasses.replace(
            self,
            mean=self.mean.clone(),
            scatter=self.scatter + other.scatter,
            target_mean=self.target_mean.clone(),
            cross_scatter=self.cross_scatter + other.cross_scatter,
            target_scatter=self.target_scatter + other.target_scatter,
            epsilon=max(self.epsilon, other.epsilon),
        )
        total._join(other.samples, other.mean, other.target_mean)
        return total

    def _join(self, samples: int, mean: Tensor, target_mean: Tensor) -> None:
        """Account for the distance between the means of two sets whose scatters were added."""
        total = self.samples + samples
        weight, share = self.samples * samples / total, samples / total
        delta, target_delta = mean - self.mean, target_mean - self.target_mean
        self.scatter.addr_(delta, delta, alpha=weight)
        self.cross_scatter.addr_(delta, target_delta, alpha=weight)
        self.target_scatter.addr_(target_delta, target_delta, alpha=weight)
        self.mean += share * delta
        self.target_mean += share * target_delta
        self.samples = total

    def transform(self, linear: Tensor) -> Gram:
        """Return the moments of ``zᵀ·linear`` for a matrix ``linear`` (D×E).

        Raises:
            InputError: if ``linear`` is not a finite real matrix of D rows.
            NumericalError: if the moments leave the range of numbers that are taken.
        """
        linear = real(linear)
        if linear.shape[0] != self.dimension:
            raise InputError(
                f"a map of shape {tuple(linear.shape)} came to {self.dimension} features."
            )
        linear = linear.detach().to("cpu", torch.float64)
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
    """Features and targets in float64, checked, and the precision of the features."""
    features = as_tensor(features, "features")
    if features.ndim != 2 or not features.numel():
        raise InputError(
            f"features have shape {tuple(features.shape)}; expected (samples, features) with at "
            "least one of each. Flatten images, or pass them through an extractor."
        )
    if targets is None:
        targets = features.new_zeros(len(features), 0)
    targets = as_tensor(targets, "targets")
    if targets.ndim != 2 or len(targets) != len(features):
        raise InputError(
            f"targets have shape {tuple(targets.shape)}; expected ({len(features)}, outputs), one "
            "row for each sample."
        )
    z, y = (values.detach().to("cpu", torch.float64) for values in (features, targets))
    check_size(z, "features")
    check_size(y, "targets")
    return z, y, epsilon_of(features.dtype)


def _centred(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values about their mean, and the mean; a constant column becomes exactly zero.

    The first row is taken off before the mean is formed: the mean of equal numbers rounds.
    """
    first = values[0]
    moved = values - first
    mean = moved.mean(0)
    return moved.sub_(mean), first + mean


def gram_of(features: Tensor, targets: Tensor | None = None) -> Gram:
    """Return the moments of one block of features (n×D) and optional targets (n×C).

    Raises:
        InputError: if the features are not a finite real matrix whose squares fit float64.
    """
    z, y, epsilon = _block(features, targets)
    d, c = z.shape[1], y.shape[1]
    zeros = functools.partial(torch.zeros, dtype=torch.float64)
    total = Gram(0, zeros(d), zeros(d, d), zeros(c), zeros(d, c), zeros(c, c))
    total._take(z, y, epsilon)
    return total


def gram(source: Any, extractor: Extractor | None = None) -> Gram:
    """Stream a task's training data, or any other data, into its moments.

    Args:
        source: a ``Task`` (its labels are encoded and collected too), features as a tensor or
            array, or a ``Dataset`` or ``DataLoader`` of ``(inputs, labels)``.
        extractor: applied to each batch of inputs first; identity if left out.

    The memory needed is O(D²) plus one chunk of about 32 MB; N may be in the millions.

    Raises:
        InputError: on NaN, infinities, no samples, or inputs that are not (samples, features).
    """
    task = source if isinstance(source, Task) else None
    if task is not None:
        split = task.train
    elif isinstance(source, Tensor | np.ndarray):
        if not source.ndim:
            raise InputError("a single number came; expected features (samples, features).")
        split = Split((source, torch.zeros(len(source))), "features")
    else:
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
        weight = real(model).detach().T if isinstance(model, Tensor) else model.weight.detach()
        offset = None if isinstance(model, Tensor) else model.bias
        weight = weight.to("cpu", torch.float64)
        bias = None if offset is None else offset.detach().to("cpu", torch.float64)

        def linear(inputs: Tensor) -> Tensor:
            if inputs.ndim != 2 or inputs.shape[1] != weight.shape[1]:
                raise InputError(
                    f"the extractor reads {weight.shape[1]} features, but the inputs have shape "
                    f"{tuple(inputs.shape[1:])} per sample."
                )
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
    """Refuse what one extractor cannot read together."""
    for task in (primary, harmful):
        if not isinstance(task, Task):
            raise InputError(
                f"expected a Task, got {type(task).__name__}; wrap data as Task(train=(X, y))."
            )
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
    for task, moments in zip((primary, harmful), grams, strict=True):
        check_moments(task.name, moments)
    return grams


def check_moments(name: str, moments: Gram) -> None:
    """Refuse features that are all zero, of which there is no κ."""
    if not bool(moments.matrix().any()):
        raise InputError(f"{name}: every feature of every sample is zero.")
