"""Second moments of features and labels, streamed in float64.

The Hessian of ℓ2 linear probing is the feature Gram matrix ``K = ZᵀZ`` (paper, eq. 6).
Everything else in the linear theory (ρ, least-squares heads, concept erasure) needs only
``ZᵀY``, ``YᵀY`` and the means beside it, so one pass over the data collects them all in
O(D²) memory, whatever the number of samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from immunis.errors import InputError
from immunis.splits import EPS64, Split, epsilon_of
from immunis.tasks import Task

CHUNK_BYTES = 1 << 25
LARGEST = 1e140  # beyond this (or below its inverse) squares leave float64's range


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

    def matrix(self, *, center: bool = False, bias: bool = False) -> Tensor:
        """Return ``K = Σ zzᵀ`` (D×D), about the mean if ``center``, with a ones column if ``bias``.

        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> gram_of(x).matrix().tolist()
        [[2.0, 2.0], [2.0, 4.0]]
        """
        if center and bias:
            raise InputError(
                "center=True and bias=True exclude each other: a centred bias column is zero."
            )
        if center:
            return self.scatter.clone()
        raw = self.scatter + self.samples * torch.outer(self.mean, self.mean)
        if not bias:
            return raw
        sums = self.samples * self.mean[:, None]
        corner = torch.full((1, 1), float(self.samples), dtype=raw.dtype)
        return torch.cat([torch.cat([raw, sums], 1), torch.cat([sums.T, corner], 1)], 0)

    def cross(self, *, center: bool = False) -> Tensor:
        """Return ``B = Σ zyᵀ`` (D×C), about the means if ``center``."""
        if center:
            return self.cross_scatter.clone()
        return self.cross_scatter + self.samples * torch.outer(self.mean, self.target_mean)

    def merge(self, other: Gram) -> Gram:
        """Return the moments of both sample sets together."""
        if self.scatter.shape != other.scatter.shape or (
            self.target_scatter.shape != other.target_scatter.shape
        ):
            raise InputError(
                f"cannot merge Grams of {self.dimension} and {other.dimension} features, "
                f"{len(self.target_mean)} and {len(other.target_mean)} targets."
            )
        samples = self.samples + other.samples
        weight = self.samples * other.samples / samples
        delta, target_delta = other.mean - self.mean, other.target_mean - self.target_mean
        share = other.samples / samples
        return Gram(
            samples,
            self.mean + share * delta,
            (self.scatter + other.scatter).addr_(delta, delta, alpha=weight),
            self.target_mean + share * target_delta,
            (self.cross_scatter + other.cross_scatter).addr_(delta, target_delta, alpha=weight),
            (self.target_scatter + other.target_scatter).addr_(
                target_delta, target_delta, alpha=weight
            ),
            max(self.epsilon, other.epsilon),
        )

    def transform(self, linear: Tensor) -> Gram:
        """Return the moments of ``zᵀ·linear`` for a matrix ``linear`` (D×E)."""
        return Gram(
            self.samples,
            linear.T @ self.mean,
            symmetric(linear.T @ self.scatter @ linear),
            self.target_mean,
            linear.T @ self.cross_scatter,
            self.target_scatter,
            self.epsilon,
        )


def symmetric(matrix: Tensor) -> Tensor:
    """Return ``(A + Aᵀ)/2``: products such as θᵀKθ are symmetric up to rounding only."""
    return (matrix + matrix.mT) / 2


def gram_of(features: Tensor, targets: Tensor | None = None) -> Gram:
    """Return the moments of one block of features (n×D) and optional targets (n×C).

    Raises:
        InputError: if the features are not a finite real matrix whose squares fit float64.
    """
    if features.ndim != 2 or not len(features):
        raise InputError(
            f"features have shape {tuple(features.shape)}; expected (samples, features) with at "
            "least one sample. Flatten images, or pass them through an extractor."
        )
    epsilon = epsilon_of(features.dtype)
    z = features.detach().to("cpu", torch.float64)
    y = z.new_zeros(len(z), 0) if targets is None else targets.detach().to("cpu", torch.float64)
    for what, values in (("features", z), ("targets", y)):
        peak = float(values.abs().max()) if values.numel() else 0.0
        if not peak <= LARGEST or 0 < peak < 1 / LARGEST:  # NaN fails the first comparison too
            raise InputError(
                f"{what} reach {peak:.3g} in size; their squares leave the range of float64. "
                f"Drop NaN and infinite values, and rescale the {what}."
            )
    mean, target_mean = z.mean(0), y.mean(0)
    z, y = z - mean, y - target_mean
    return Gram(len(z), mean, z.T @ z, target_mean, z.T @ y, y.T @ y, epsilon)


def gram(source: Any, extractor: Callable[[Tensor], Tensor] | None = None) -> Gram:
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
        split = Split((source, torch.zeros(len(source))), "features")
    else:
        split = source if isinstance(source, Split) else Split(source, "data")
    first, _ = next(split.batches(1))
    size = max(256, CHUNK_BYTES // (8 * max(1, first[0].numel())))
    total: Gram | None = None
    for inputs, labels in split.batches(size):
        features = inputs if extractor is None else extractor(inputs)
        part = gram_of(features, None if task is None else task.targets(labels))
        if task is not None:
            part.epsilon = max(part.epsilon, task.epsilon)
        total = part if total is None else total.merge(part)
    assert total is not None  # a Split never streams fewer than two samples
    return total
