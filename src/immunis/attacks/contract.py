"""The contract of an attack: what it is given, what it yields, and how it describes itself.

An attack gets an arena: a model, or features read from it, the attacker's data, a seed and a
budget. It yields steps: what it has spent so far, and how to score what it has learned. Some of the
attacker's training rows are held out to validate. The search chooses settings, and the step to
stop at, on these; test scores are only reported.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from immunis.attacks.features import Features
from immunis.models.cut import Cut

LONG_BUDGET = 1000
Settings = Mapping[str, Any]
Arrays = tuple[np.ndarray, np.ndarray]


class NotApplicableError(Exception):
    """The attack has nothing to work on here: no BatchNorm, no earlier layer, ..."""


class Step(NamedTuple):
    """What an attack yields: its cost so far, and a call that returns (validation, test) scores.

    Attributes:
        steps: optimizer steps taken; 1 for a closed-form solution.
        samples: training samples processed, counting repeats.
        flops: floating-point operations spent, feature extraction included.
        scores: called at once; the time it takes is not counted.
    """

    steps: int
    samples: int
    flops: float
    scores: Callable[[], tuple[float, float]]


Curve = Iterable[Step]


@dataclass(frozen=True)
class Point:
    """A step after scoring; ``seconds`` is the wall time of training."""

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
    """A task as arrays: its kind, and the number of classes or targets."""

    kind: str
    outputs: int
    train: Data
    test: Data


@dataclass(frozen=True)
class Arena:
    """Everything that one attack on one model with one seed may use.

    Attributes:
        cut: the model; an attack that changes it takes ``cut.copy()``.
        cache: features of training and test rows, by layer (``""`` for the model's features).
        extraction_flops: cost of reading one sample's features.
        harmless: a harmless task, for attacks that train on one first.
        budget: largest number of optimizer steps.
        seed: decides the split, first weights and batches.
        notes: what a run wants the record to say.
        fold: which fifth of the training rows validates.
        refit: fit on the validation rows too, once settings are chosen.
        blind: leave test rows unscored, while a closed-form attack's settings are chosen.
    """

    cut: Cut
    kind: str
    outputs: int
    train: Data
    test: Data
    cache: Mapping[str, Arrays] = field(default_factory=dict)
    extraction_flops: float = 0.0
    harmless: Samples | None = None
    budget: int = 1000
    seed: int = 0
    device: str = "cpu"
    notes: list[str] = field(default_factory=list)
    fold: int = 0
    refit: bool = False
    blind: bool = False

    @cached_property
    def rows(self) -> Arrays:
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
        """True if the budget is large: attacks then search more settings."""
        return self.budget >= LONG_BUDGET

    @property
    def earlier_stages(self) -> tuple[str, ...]:
        """Every stage of the extractor but the last; raise NotApplicableError if there is none."""
        if len(self.cut.stages) < 2:
            raise NotApplicableError("the extractor has one stage only")
        return self.cut.stages[:-1]

    @property
    def last_linear(self) -> str:
        """The linear layer that makes the features; raise NotApplicableError if none does."""
        if self.cut.last_linear is None:
            raise NotApplicableError("the features are not the output of a linear layer")
        return self.cut.last_linear

    def generator(self) -> torch.Generator:
        """Return a fresh generator on this arena's seed."""
        return torch.Generator().manual_seed(self.seed)

    def features(self, layer: str = "") -> Features:
        """Return the features cached at a layer, divided into fit, validation and test parts."""
        train, test = (tensor(part) for part in self.cache[layer])
        return Features(self, train, test)

    def labels(self, part: np.ndarray) -> Tensor:
        """Return labels as a tensor: class positions, or a float64 target matrix."""
        return tensor(part).to(torch.int64 if self.kind == "classification" else torch.float64)


Searched = Mapping[str, Sequence[Any] | Callable[[Arena], Sequence[Any]]]


@dataclass(frozen=True)
class Attack:
    """An attack; its file gives it a name, the first line of the file's docstring a summary.

    Attributes:
        run: train with one choice of settings and yield steps; or leave it out and give
            ``features``.
        settings: values to search, by name, the safest first; or a function of the arena.
        reads: layers whose features must be cached; or a function of the cut model.
        features: return other features of training and test rows, which the search then probes.
        closed_form: nothing stops early, so the chosen settings are fitted again on all rows.
        needs_classes: the attack does not apply to regression.
        preset: smallest set of attacks that has this one: quick, standard or full.
        place: lists show a family in this order, and among equals the first wins.
        telling: a probe's place among those that run on other features. The first three run at
            any budget, the others at a large one.
    """

    run: Callable[[Arena, Settings], Curve] | None = None
    settings: Searched = field(default_factory=dict)
    reads: Sequence[str] | Callable[[Cut], Sequence[str]] = ("",)
    features: Callable[[Arena, Settings], Arrays] | None = None
    closed_form: bool = False
    needs_classes: bool = False
    preset: str = "standard"
    place: int = 99
    telling: int = 99
    name: str = ""
    summary: str = ""

    def layers(self, cut: Cut) -> tuple[str, ...]:
        """Return the layers of a model whose features must be cached."""
        return tuple(self.reads(cut) if callable(self.reads) else self.reads)


def read_features(cut: Cut, inputs: np.ndarray) -> Tensor:
    """Return a model's features of some inputs, without gradients, on the CPU."""
    with torch.no_grad():
        return torch.cat([cut.features(block).cpu() for block in tensor(inputs).split(512)])


def if_patient(*values: Any) -> Callable[[Arena], Sequence[Any]]:
    """Search all the values where the budget is large, the first one otherwise."""
    return lambda arena: values if arena.patient else values[:1]


def before_last(cut: Cut) -> tuple[str, ...]:
    """Return the input of the linear layer that makes the features, as a layer to read."""
    return () if cut.last_linear is None else (f"{cut.last_linear}:in",)
