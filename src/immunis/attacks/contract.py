"""What every attack is given, what it returns, and how its settings are searched.

An attack gets a model (its own copy, or features cached from it), the attacker's data, a
seed and a budget, and returns a learning curve: points of cost and score. The attacker's
training data is divided into a part to fit and a part to validate; settings and the moment
to stop are chosen on the latter, and only the chosen run's *test* scores are reported.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from immunis.data.task import target_matrix
from immunis.models.cut import Cut
from immunis.theory.scale import power_of_two
from immunis.theory.scores import score

LONG_BUDGET = 1000
Settings = Mapping[str, Any]
Space = Mapping[str, Sequence[Any]]
Predict = Callable[[Tensor], Tensor]


class NotApplicableError(Exception):
    """The attack has nothing to work on here (no BatchNorm, no earlier layer, ...)."""


@dataclass(frozen=True)
class Point:
    """Where a learning curve is after some cost.

    Attributes:
        steps: optimizer steps taken; 1 for a closed-form solution.
        samples: training samples processed, counting repeats.
        flops: floating-point operations spent on training, feature extraction included.
        seconds: wall time spent on training, scoring excluded.
        validation: score on the attacker's validation part.
        test: score on test data.
    """

    steps: int
    samples: int
    flops: float
    seconds: float
    validation: float
    test: float


def tensor(array: np.ndarray) -> Tensor:
    """View an array as a tensor to read from; worker processes hold theirs read-only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


@dataclass(frozen=True)
class Data:
    """Inputs and labels as arrays: class positions (integers) or a target matrix (floats)."""

    inputs: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Samples:
    """A task as arrays."""

    kind: str
    outputs: int
    train: Data
    test: Data


@dataclass(frozen=True)
class Arena:
    """Everything one attack on one model with one seed may use.

    Attributes:
        cut: the model; an attack that changes it takes ``cut.copy()``.
        kind: ``"classification"`` or ``"regression"``.
        outputs: number of classes or targets.
        train: the attacker's data.
        test: held-out data.
        cache: features already read, by layer: training and test rows.
        extraction_flops: cost of reading one sample's features.
        harmless: a harmless task, for attacks that warm up on one.
        budget: the largest number of optimizer steps.
        seed: decides the split, initial weights and batches.
        device: where to train.
        notes: what a run wants the record to say.
        tally: operations of every run a search has made, inner searches included.
        fold: which fifth of the training rows validates.
        refit: fit on the validation rows too, once settings are chosen.
        blind: leave the test rows unscored, while settings of a closed-form attack are chosen.
    """

    cut: Cut
    kind: str
    outputs: int
    train: Data
    test: Data
    cache: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    extraction_flops: float = 0.0
    harmless: Samples | None = None
    budget: int = 1000
    seed: int = 0
    device: str = "cpu"
    notes: list[str] = field(default_factory=list)
    tally: list[float] = field(default_factory=list)
    fold: int = 0
    refit: bool = False
    blind: bool = False

    @cached_property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Training rows to fit on (80%) and to validate on (20%), drawn by the seed.

        Classes are spread evenly over both. ``fold`` moves the validation part along; with
        ``refit`` the rows to fit on are all of them.
        """
        labels = self.train.labels
        order = np.random.default_rng(self.seed).permutation(len(labels))
        if self.kind == "classification":
            turn = np.zeros(len(order), dtype=int)  # a row's place among those of its class
            for label in np.unique(labels):
                mine = labels[order] == label
                turn[mine] = np.arange(mine.sum())
            order = order[np.argsort(turn, kind="stable")]
        size = max(1, len(order) // 5)
        held = order[self.fold * size : (self.fold + 1) * size]
        return (order if self.refit else np.setdiff1d(order, held)), held

    @property
    def patient(self) -> bool:
        """Whether the budget is large: attacks then search more."""
        return self.budget >= LONG_BUDGET

    def generator(self) -> torch.Generator:
        """Return a fresh generator on this arena's seed."""
        return torch.Generator().manual_seed(self.seed)

    def features(self, layer: str = "") -> Features:
        """Features cached at a layer, divided into fit, validation and test parts."""
        train, test = (tensor(part) for part in self.cache[layer])
        return Features(self, train, test)

    def labels(self, part: np.ndarray) -> Tensor:
        """Labels as a tensor: class positions, or a float64 target matrix."""
        kind = torch.int64 if self.kind == "classification" else torch.float64
        return tensor(part).to(kind)


class Features:
    """Feature matrices of one arena with their labels, and scoring on them."""

    def __init__(self, arena: Arena, train: Tensor, test: Tensor) -> None:
        fit, held = (torch.from_numpy(rows) for rows in arena.rows)
        labels = arena.labels(arena.train.labels)
        self.arena, self.kind, self.outputs = arena, arena.kind, arena.outputs
        self.z, self.y = train[fit], labels[fit]
        self.parts = {
            "validation": (train[held], labels[held]),
            "test": (test, arena.labels(arena.test.labels)),
        }

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return self.z.shape[1]

    @property
    def samples(self) -> int:
        """Number of samples to fit on."""
        return len(self.z)

    def targets(self) -> Tensor:
        """Labels to fit as a float64 matrix: one column per class or target."""
        return target_matrix(self.y, self.kind, self.outputs)

    def map(self, transform: Callable[[Tensor], Tensor]) -> Features:
        """Return the same problem with every feature matrix transformed."""
        mapped = Features.__new__(Features)
        mapped.__dict__.update(self.__dict__)
        mapped.z = transform(self.z)
        mapped.parts = {name: (transform(z), y) for name, (z, y) in self.parts.items()}
        return mapped

    def standardised(self) -> Features:
        """Return the problem with every feature centred and of unit deviation."""
        z, power = self._unit()
        mean, deviation = z.mean(0), z.std(0)
        scale = torch.where(deviation > 1e-12 * deviation.max(), deviation, torch.inf)
        return self.map(lambda z: (z / power - mean) / scale)

    def scaled(self) -> Features:
        """Return the problem with one common factor that makes the mean square one."""
        z, power = self._unit()
        size = z.square().mean().sqrt()
        return self.map(lambda z: z / power / torch.where(size > 0, size, 1.0))

    def _unit(self) -> tuple[Tensor, float]:
        """Features to fit on at unit scale, where their squares fit their dtype."""
        power = power_of_two(self.z)
        return self.z / power, power

    def scores(self, predict: Predict) -> tuple[float, float]:
        """Score predictions (samples, outputs) on the validation and test parts.

        In a blind arena the test score is NaN.
        """

        def of(part: str) -> float:
            z, labels = self.parts[part]
            return score(predict(z), labels, self.kind)

        with torch.no_grad():
            return of("validation"), math.nan if self.arena.blind else of("test")


class Meter:
    """Collects a learning curve, keeping the time spent on scoring out of it.

    ``spent`` are operations made before the first step (solves, decompositions, extra passes), and
    ``seconds`` those of an earlier phase.
    """

    def __init__(
        self, arena: Arena, extracted: bool = True, spent: float = 0.0, seconds: float = 0.0
    ) -> None:
        self.points: list[Point] = []
        samples = len(arena.rows[0])
        self.flops = spent + (arena.extraction_flops * samples if extracted else 0.0)
        self._clock, self._spent = time.perf_counter(), seconds

    def point(self, steps: int, samples: int, flops: float, scores: Callable[[], Any]) -> None:
        """Add a point after ``steps``; ``scores`` returns validation and test score."""
        self._spent += time.perf_counter() - self._clock
        with torch.no_grad():
            validation, test = scores()
        self.points.append(Point(steps, samples, self.flops + flops, self._spent, validation, test))
        self._clock = time.perf_counter()


def checkpoints(budget: int) -> list[int]:
    """Steps 1, 2, 5, 10, 20, 50, ... up to and including the budget."""
    marks = (m * 10**e for e in range(7) for m in (1, 2, 5))
    return sorted({*itertools.takewhile(lambda m: m < budget, marks), budget})


def count_flops(call: Callable[[], Any]) -> tuple[Any, float]:
    """Run ``call`` and return its result with the operations torch counted in it."""
    counter = FlopCounterMode(display=False)
    with counter:
        result = call()
    return result, float(counter.get_total_flops())


def solve_flops(samples: int, dimension: int, outputs: int) -> float:
    """Operations of a ridge solve by normal equations; torch counts no solves."""
    return 2.0 * samples * dimension * (dimension + outputs) + 2 / 3 * dimension**3


def whiten_flops(samples: int, dimension: int) -> float:
    """Operations of a covariance, its eigendecomposition (about 9D³) and the change of basis."""
    return 4.0 * samples * dimension**2 + 9.0 * dimension**3


@dataclass(frozen=True)
class Attack:
    """An attack: its name, one sentence, the layers it reads, its settings and its run.

    Attributes:
        layers: names of the layers whose features must be cached (``""`` for the features).
        space: settings to search, by name; may depend on the arena.
        run: one run with one setting.
        closed_form: nothing is stopped early, so the chosen setting is fitted again on all rows.
    """

    name: str
    summary: str
    run: Callable[[Arena, Settings], list[Point]]
    space: Callable[[Arena], Space] = lambda arena: {}
    layers: Callable[[Cut], Sequence[str]] = lambda cut: ("",)
    closed_form: bool = False
