"""The contract of an attack: what it is given, what it yields, how its cost is counted.

An attack gets an arena: a model, or features read from it, the attacker's data, a seed and a
budget. It yields steps: what it has spent so far, and how to score what it has learned. Some of the
attacker's training rows are held out to validate. The search chooses settings, and the step to
stop at, on these; test scores are only reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from immunis.attacks.arrays import Arrays, Data, Samples, tensor
from immunis.attacks.features import Features, Scores
from immunis.attacks.sampling import by_class, sample
from immunis.core.settings import require
from immunis.models.cut import Cut

LONG_BUDGET = 1000
MOST_STEPS = 300  # of training a network on something else before it is attacked
Settings = Mapping[str, Any]


class NotApplicableError(Exception):
    """The attack has nothing to work on here: no BatchNorm, no earlier layer, ..."""


class Step(NamedTuple):
    """What an attack yields: its cost so far, and a call that scores what it has learned.

    Attributes:
        steps: optimizer steps taken; 1 for a closed-form solution.
        samples: training samples processed, counting repeats.
        flops: floating-point operations spent, feature extraction included.
        scores: called at once; the time it takes is not counted.
    """

    steps: int
    samples: int
    flops: float
    scores: Callable[[], Scores]


Curve = Iterable[Step]


class Made(NamedTuple):
    """Features that an attack has made of training and test rows, and what it spent on them.

    ``by_reading`` has them by the values of the setting ``read``, or as ``""`` without one.
    """

    by_reading: Mapping[str, Arrays]
    steps: int = 0
    samples: int = 0
    flops: float = 0.0


@dataclass(frozen=True)
class Point:
    """A step after scoring; ``seconds`` is the wall time of training, ``hits`` as in ``Scores``."""

    steps: int
    samples: int
    flops: float
    seconds: float
    validation: float
    test: float
    hits: np.ndarray | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Arena:
    """Everything that one attack on one model with one seed may use.

    Attributes:
        cut: the model; an attack that changes it takes ``cut.copy()``.
        cache: features of training and test rows, by layer (``""`` for the model's features).
        extraction_flops: cost of reading one sample's features.
        harmless: a harmless task, for attacks that train on one first.
        primary: public data of the task that the model was released for.
        budget: largest number of optimizer steps.
        seed: decides the split, first weights and batches.
        draw: which sample of the training rows the attacker has (``attacks.sampling``); None for
            all.
        notes: what a run wants the record to say.
        fold: which fifth of the training rows validates.
        refit: fit on the validation rows too, once settings are chosen.
        blind: leave test rows unscored, while a closed-form attack's settings are chosen.
        pilot: score at the end alone: a short run that a search compares with others.
    """

    cut: Cut
    kind: str
    outputs: int
    train: Data
    test: Data
    cache: Mapping[str, Arrays] = field(default_factory=dict)
    extraction_flops: float = 0.0
    harmless: Samples | None = None
    primary: Samples | None = None
    budget: int = 1000
    seed: int = 0
    draw: int | None = None
    device: str = "cpu"
    notes: list[str] = field(default_factory=list)
    fold: int = 0
    refit: bool = False
    blind: bool = False
    pilot: bool = False

    @cached_property
    def own(self) -> np.ndarray:
        """Training rows that this attacker has; attacks read no other labels."""
        return sample(self.train.labels, self.kind, self.draw)

    @cached_property
    def rows(self) -> Arrays:
        """Training rows to fit on (80%) and to validate on (20%), drawn by the seed.

        The split is stratified: every class has its share of both (give or take a row), and all
        that have two rows or more keep some to fit on. A class of one row is fitted and never
        validated, and the notes say so; if there are no others, the rows fitted are validated.
        ``fold`` moves the validation part along; with ``refit`` all of these rows are fitted.
        scikit-learn's splitters refuse what attackers often have: classes of one row, or of four.
        """
        own = self.own
        order, alone = by_class(self.train.labels[own], self.kind, self.seed)
        if alone.any():
            self.notes.append(f"{alone.sum()} class(es) of one training row are never validated")
        size = max(1, len(order) // 5)
        held = order[self.fold * size : (self.fold + 1) * size]
        held = held[~alone[held]]
        fit = order if self.refit else np.setdiff1d(order, held)
        return own[fit], own[held if len(held) else fit]

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


def check_values(values: Any, name: str, where: str) -> None:
    """Raise ``SettingsError`` unless values to search come as a list that is not empty."""
    listed = isinstance(values, Sequence) and not isinstance(values, str) and len(values)
    require(
        bool(listed),
        f"{where}: {name}={values!r}; expected a list of values to search, as in [{values!r}].",
    )


Searched = Mapping[str, Sequence[Any] | Callable[[Arena], Sequence[Any]]]


@dataclass(frozen=True)
class Attack:
    """An attack; its file gives it a name, the first line of the file's docstring a summary.

    Attributes:
        run: train with one choice of settings and yield steps; or leave it out and give
            ``together`` or ``features``.
        together: train with several choices of settings as one computation, and yield the steps
            of all at each checkpoint.
        settings: values to search, by name, the safest first; or a function of the arena.
        reads: layers whose features must be cached; or a function of the cut model.
        features: return other features of training and test rows, which the search then probes,
            as a pair or as ``Made``.
        retrains: train the network first, without harmful labels, and then probe it.
        every_probe: all probes run on these features at any budget, not the most telling only.
        closed_form: nothing stops early, so the chosen settings are fitted again on all rows.
        needs_classes: the attack does not apply to regression.
        anticipated: a defence of this package is trained or stopped against it, or against one
            that reads the same by another loss or optimizer.
        preset: smallest set of attacks that has this one: quick, standard or full.
        place: lists show a family in this order, and among equals the first wins.
        telling: a probe's place among those that run on other features. The first three run at
            any budget, the others at a large one.
    """

    run: Callable[[Arena, Settings], Curve] | None = None
    settings: Searched = field(default_factory=dict)
    reads: Sequence[str] | Callable[[Cut], Sequence[str]] = ("",)
    features: Callable[[Arena, Settings], Arrays | Made] | None = None
    together: Callable[[Arena, Sequence[Settings]], Iterable[Sequence[Step]]] | None = None
    retrains: bool = False
    every_probe: bool = False
    closed_form: bool = False
    needs_classes: bool = False
    anticipated: bool = False
    preset: str = "standard"
    place: int = 99
    telling: int = 99
    name: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        """Check what it searches; a function of the arena is checked when an audit begins."""
        named = isinstance(self.settings, Mapping)
        require(named, f"settings={self.settings!r}: expected values to search, by name.")
        for name, values in self.settings.items():
            if not callable(values):
                check_values(values, name, "settings of an attack")

    @property
    def fine_tunes(self) -> bool:
        """True if it trains the network by ``tune``: successive halving then searches settings."""
        return "optimizer" in self.settings

    def layers(self, cut: Cut) -> tuple[str, ...]:
        """Return the layers of a model whose features must be cached."""
        return tuple(self.reads(cut) if callable(self.reads) else self.reads)


def if_patient(*values: Any) -> Callable[[Arena], Sequence[Any]]:
    """Search all the values where the budget is large, the first one otherwise."""
    return lambda arena: values if arena.patient else values[:1]


def before_last(cut: Cut) -> tuple[str, ...]:
    """Return the input of the linear layer that makes the features, as a layer to read."""
    return () if cut.last_linear is None else (f"{cut.last_linear}:in",)


def checkpoints(budget: int) -> list[int]:
    """Return the steps to score at: 1, 2, 5, 10, 20, 50, ... and the budget.

    >>> checkpoints(30)
    [1, 2, 5, 10, 20, 30]
    """
    marks = (m * 10**e for e in range(7) for m in (1, 2, 5))
    return sorted({*itertools.takewhile(lambda m: m < budget, marks), budget})


def count_flops(call: Callable[[], Any]) -> tuple[Any, float]:
    """Run ``call`` and return its result with the operations that torch counts in it."""
    counter = FlopCounterMode(display=False)
    with counter:
        result = call()
    return result, float(counter.get_total_flops())
