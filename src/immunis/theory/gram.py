"""Second moments of features and labels, streamed in float64.

The Hessian of ℓ2 linear probing is the feature Gram matrix ``K = ZᵀZ`` (paper, eq. 6). The rest of
the linear theory needs only ``ZᵀY``, ``YᵀY`` and the means: one pass collects all in O(D²) memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from immunis.core.errors import ImmunisError, InputError, NumericalError
from immunis.data.checks import EPS64, LARGEST_MATRIX, as_tensor, check_size, epsilon_of, real
from immunis.data.feed import run_model
from immunis.data.split import Split
from immunis.data.task import Task, check_tasks
from immunis.theory.summation import add_gram, add_products

Extractor = Callable[[Tensor], Tensor]
CHUNK_BYTES = 1 << 25


@dataclass
class Gram:
    """Moments of ``n`` samples of features ``z`` (D) and targets ``y`` (C), in float64.

    Held as means and centred scatter matrices, which merge without cancellation
    (Chan, Golub and LeVeque 1983): ``S = Σ (z−μ)(z−μ)ᵀ``, and likewise for ``zyᵀ``, ``yyᵀ``.
    ``rest`` is ``S − scatter``, what rounding took from the sum: it makes sums of any length exact.
    ``cross_rest`` and ``target_rest`` are the same of the other two. ``epsilon`` is the precision
    in which inputs or features were stored; ``carried`` bounds, in the Frobenius norm, what a
    linear map made of rounding before it: ``‖ΔZ‖ ≤ ‖ΔX‖·‖θ‖₂``, however much of X it cancels.
    """

    samples: int
    mean: Tensor
    scatter: Tensor
    target_mean: Tensor
    cross_scatter: Tensor
    target_scatter: Tensor
    epsilon: float = EPS64
    carried: float = 0.0
    rest: Tensor = field(init=False, repr=False)
    cross_rest: Tensor = field(init=False, repr=False)
    target_rest: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.rest = torch.zeros_like(self.scatter)
        self.cross_rest = torch.zeros_like(self.cross_scatter)
        self.target_rest = torch.zeros_like(self.target_scatter)

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return self.scatter.shape[0]

    def matrix(self) -> Tensor:
        """Return ``K = Σ zzᵀ`` (D×D).

        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> gram_of(x).matrix().round(decimals=12).tolist()
        [[2.0, 2.0], [2.0, 4.0]]
        """
        total, rest = self.scatter.clone(), self.rest.clone()
        add_gram(total, rest, math.sqrt(self.samples) * self.mean[None])
        return total

    def cross(self) -> Tensor:
        """Return ``B = Σ zyᵀ`` (D×C)."""
        return self.cross_scatter + self.samples * torch.outer(self.mean, self.target_mean)

    def add(self, features: Tensor, targets: Tensor | None = None) -> None:
        """Take in a block of features (n×D) and targets (n×C), in place, without D² more memory."""
        z, y, epsilon = _block(features, targets)
        if (z.shape[1], y.shape[1]) != (held := tuple(self.cross_scatter.shape)):
            raise InputError(
                f"cannot merge {z.shape[1]} features and {y.shape[1]} targets into moments of "
                f"{held[0]} features and {held[1]} targets."
            )
        samples, total = len(z), self.samples + len(z)
        (z, mean), (y, target_mean) = _centred(z), _centred(y)
        delta, target_delta = mean - self.mean, target_mean - self.target_mean
        weight = math.sqrt(self.samples * samples / total)  # the means' distance is one more row
        z, y = torch.cat([z, weight * delta[None]]), torch.cat([y, weight * target_delta[None]])
        add_gram(self.scatter, self.rest, z)
        if y.shape[1]:
            add_products(self.cross_scatter, self.cross_rest, z, y)
            add_gram(self.target_scatter, self.target_rest, y)
        self.mean += samples / total * delta
        self.target_mean += samples / total * target_delta
        self.samples, self.epsilon = total, max(self.epsilon, epsilon)

    def transform(self, linear: Tensor) -> Gram:
        """Return the moments of ``zᵀ·linear`` for a matrix ``linear`` (D×E)."""
        linear = real(linear).detach().to("cpu", torch.float64)
        if len(linear) != self.dimension:
            came = f"the map has shape {tuple(linear.shape)}"
            raise InputError(f"{came}; expected one row for each of {self.dimension} features.")
        check_size(linear, "numbers of the map", LARGEST_MATRIX)
        mean, scatter = linear.T @ self.mean, symmetric(linear.T @ self.scatter @ linear)
        for moment in (mean.square(), scatter):
            check_size(moment, "moments of the mapped features", LARGEST_MATRIX, NumericalError)
        spread = float(self.scatter.diagonal().sum())
        shift = math.sqrt(self.samples) * float(self.mean.norm())
        rounding = self.dimension * EPS64  # of the products: of S, √ of it in singular values
        own = math.sqrt(3 * rounding * spread) + rounding * shift
        stored = self.carried + self.epsilon / 2 * math.hypot(math.sqrt(spread), shift)
        return dataclasses.replace(
            self,
            mean=mean,
            scatter=scatter,
            cross_scatter=linear.T @ self.cross_scatter,
            carried=stored * stretch(linear) + own * float(linear.norm()),
        )


def stretch(linear: Tensor) -> float:
    """Return ``‖A‖₂``: by how much a map makes a row longer at most."""
    return float(torch.linalg.matrix_norm(linear, 2))


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


def gram_of_blocks(blocks: Iterable[tuple[Tensor, Tensor | None]]) -> Gram:
    """Return the moments of blocks as ``gram_of`` takes them, one block at a time."""
    others = iter(blocks)
    total = gram_of(*next(others))
    for block in others:
        total.add(*block)
    return total


def gram(
    source: Any, extractor: Extractor | None = None, seen: Callable[[int], None] = lambda _: None
) -> Gram:
    """Stream data through an extractor into its moments, in O(D²) memory plus a chunk of 32 MB.

    ``source`` is a ``Task`` (its training data, with encoded labels), features as a tensor or
    array, or a ``Dataset`` or ``DataLoader`` of ``(inputs, labels)``. ``seen`` is told how many
    rows each chunk has. Raises ``InputError`` on NaN, infinities, no samples, or inputs that are
    not (samples, features).
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
    length = 0.0  # ‖X‖

    def blocks() -> Iterator[tuple[Tensor, Tensor | None]]:
        nonlocal length
        for x, y in split.batches(size):
            seen(len(x))
            if isinstance(extractor, Linear):
                length = math.hypot(length, float(x.to(torch.float64).norm()))
            targets = None if task is None else task.targets(y)
            yield x if extractor is None else extractor(x), targets

    total, epsilon = gram_of_blocks(blocks()), epsilon_of(first.dtype)
    total.epsilon = max(total.epsilon, epsilon)
    if isinstance(extractor, Linear):
        total.carried = length * extractor.rounding(epsilon)
    return total


@dataclass(frozen=True)
class Linear:
    """The map ``x ↦ xᵀθ + b`` in float64; ``weight`` is ``θᵀ``."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the features of a batch of inputs (n×D)."""
        if inputs.ndim != 2 or inputs.shape[1] != self.weight.shape[1]:
            came = f"the inputs have shape {tuple(inputs.shape[1:])} per sample"
            raise InputError(f"the extractor reads {self.weight.shape[1]} features, but {came}.")
        return nn.functional.linear(inputs.to(torch.float64), self.weight, self.bias)

    def rounding(self, epsilon: float) -> float:
        """Return ``‖ΔZ‖/‖X‖`` at most, for inputs of that precision and sums in float64."""
        sums = self.weight.shape[1] * EPS64 / 2 * float(self.weight.norm())
        return epsilon / 2 * stretch(self.weight) + sums


def as_extractor(model: nn.Module | Tensor | np.ndarray | None) -> Extractor:
    """Return the feature map of a model, of a matrix θ (``x ↦ xᵀθ``), or the identity.

    A linear layer is applied in float64; any other module in the dtype of its parameters (token
    ids stay whole numbers), in evaluation mode and without gradients.
    """
    if model is None:
        return lambda inputs: inputs
    if isinstance(model, Tensor | np.ndarray | nn.Linear):
        theta = model.weight if isinstance(model, nn.Linear) else real(model).T
        bias = getattr(model, "bias", None)
        given = (theta, *([] if bias is None else [bias]))
        return Linear(*(each.detach().to("cpu", torch.float64) for each in given))
    if isinstance(model, nn.Module):
        if model.training:
            raise InputError("the model is in training mode; call model.eval() first.")

        @torch.no_grad()
        def extract(inputs: Tensor) -> Tensor:
            try:
                found = run_model(model, inputs)
            except (ImmunisError, torch.OutOfMemoryError):
                raise
            except (RuntimeError, TypeError, ValueError) as error:  # a model may fail in any way
                shape = f"shape {tuple(inputs.shape)} and {inputs.dtype}"
                raise InputError(f"the model cannot read inputs of {shape}: {error}") from error
            if isinstance(found, Tensor):
                return found
            raise InputError(
                f"the model returns {type(found).__name__}; expected a tensor of features (samples,"
                " features). Wrap it in a module that returns one row for each sample."
            )

        return extract
    raise InputError(f"expected a matrix θ or an nn.Module, got {type(model).__name__}.")


def check_pair(primary: Task, harmful: Task) -> None:
    """Raise ``InputError`` unless both are tasks that one extractor can read."""
    check_tasks(primary=primary, harmful=harmful)
    if primary.input_shape != harmful.input_shape:
        raise InputError(
            f"{primary.name} inputs have shape {primary.input_shape} per sample, {harmful.name} "
            f"inputs {harmful.input_shape}; one extractor must read both."
        )


def paired_grams(
    primary: Task,
    harmful: Task,
    extractor: Extractor | None = None,
    seen: Callable[[int], None] = lambda _: None,
) -> tuple[Gram, Gram]:
    """Stream both tasks into moments as ``gram`` does, refusing pairs that cannot be compared."""
    check_pair(primary, harmful)
    grams = gram(primary, extractor, seen), gram(harmful, extractor, seen)
    check_moments(primary.name, grams[0])
    check_moments(harmful.name, grams[1])
    return grams


def check_moments(name: str, moments: Gram) -> None:
    """Raise ``InputError`` if every feature is zero: there is no κ."""
    if not bool(moments.matrix().any()):
        raise InputError(f"{name}: every feature of every sample is zero.")
