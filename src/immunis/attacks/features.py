"""Feature matrices with their labels, the bases in which to look at them, and the cost of both.

If one direction is much larger than the others, only white features show the others. If a few rows
are much longer than most, only rows of one length show most rows. Which basis serves best is a
setting like any other.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from immunis.data.checks import power_of_two
from immunis.data.task import target_matrix
from immunis.theory.feature_maps import mean_and_scale, unit_rows
from immunis.theory.gram import gram_of
from immunis.theory.scores import row_hits, score, score_of
from immunis.theory.spectrum import eigh, relative_cutoff

if TYPE_CHECKING:
    from immunis.attacks.contract import Arena

SAMPLES = 4  # to each feature, from which on whitening shows more than noise
UNEQUAL = 100  # condition number of standardised features above which whitening changes much
LENGTHS = ("given", "unit")  # bases for probes that need no scale
Map = Callable[[Tensor], Tensor]


class Scores(NamedTuple):
    """Scores on the validation and the test rows, and how each test row was answered.

    ``hits`` are what ``theory.scores.row_hits`` returns, as an array. Without them, the audit
    cannot say how much a score depends on the test rows that it was measured on.
    """

    validation: float
    test: float
    hits: np.ndarray | None = None


class Features:
    """Feature matrices of one arena with their labels.

    Attributes:
        z: features to fit on (n×D).
        y: their labels: class positions, or a target matrix.
        parts: features and labels of ``"validation"`` and ``"test"``.
        spent: operations it took to get the features.
    """

    def __init__(self, arena: Arena, train: Tensor, test: Tensor) -> None:
        fit, held = (torch.from_numpy(rows) for rows in arena.rows)
        labels = arena.labels(arena.train.labels)
        self.arena, self.kind, self.outputs = arena, arena.kind, arena.outputs
        self.z, self.y = train[fit], labels[fit]
        self.parts = {
            "validation": (train[held], labels[held]),
            "test": (test, arena.labels(arena.test.labels)),
        }
        self.spent = arena.extraction_flops * len(fit)

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return self.z.shape[1]

    @property
    def samples(self) -> int:
        """Number of samples to fit on."""
        return len(self.z)

    def targets(self) -> Tensor:
        """Return the labels to fit as a float64 matrix: one column per class or target."""
        return target_matrix(self.y, self.kind, self.outputs)

    def scores(self, predict: Map) -> Scores:
        """Score predictions (samples×outputs) on the validation and test parts.

        In a blind arena the test score is NaN.
        """
        (held, wanted), (test, labels) = self.parts["validation"], self.parts["test"]
        with torch.no_grad():
            validation = score(predict(held), wanted, self.kind)
            if self.arena.blind:
                return Scores(validation, math.nan)
            hits = row_hits(predict(test), labels, self.kind)
        return Scores(validation, score_of(hits), hits.cpu().numpy())

    def map(self, transform: Map, spent: float = 0.0) -> Features:
        """Return the same problem with every feature matrix transformed."""
        mapped = copy.copy(self)
        mapped.z = transform(self.z)
        mapped.parts = {name: (transform(z), y) for name, (z, y) in self.parts.items()}
        mapped.spent += spent
        return mapped

    def unit(self) -> Features:
        """Return the problem divided by a power of two: exact, and squares then fit the dtype."""
        power = power_of_two(self.z)
        return self.map(lambda z: z / power)

    def standardised(self) -> Features:
        """Return the problem with every feature centred and of unit deviation."""
        unit = self.unit()
        mean, scale = mean_and_scale(unit.z)
        return unit.map(lambda z: (z - mean) / scale)

    def scaled(self) -> Features:
        """Return the problem with one common factor that makes the mean square one."""
        unit = self.unit()
        size = unit.z.square().mean().sqrt()
        return unit.map(lambda z: z / torch.where(size > 0, size, 1.0))

    def white(self, ridge: float = 0.0) -> Features:
        """Return the problem in coordinates where the features are white."""
        unit = self.unit()
        mean, transform = whitening(unit.z, ridge)
        spent = whiten_flops(self.samples, self.dimension)
        return unit.map(lambda z: (z.double() - mean) @ transform, spent)

    def in_basis(self, basis: str) -> Features:
        """Return the problem in a basis: given, standardised, white or unit.

        For ``"unit"`` rows are brought to one length from the median of each feature, made white
        (or standardised, where samples are few), and brought to one length again, √D.
        """
        plain = {"given": self.unit, "standardised": self.standardised, "white": self.white}
        if basis in plain:
            return plain[basis]()
        scaled = self.scaled()
        middle = scaled.z.double().median(0).values
        even = scaled.map(lambda z: unit_rows(z - middle))
        found = even.white() if self.suffice else even.standardised()
        found = found if found.dimension else even.standardised()  # nothing varies
        return found.map(lambda z: math.sqrt(found.dimension) * unit_rows(z))

    @property
    def suffice(self) -> bool:
        """True if there are enough samples to tell directions apart."""
        return self.samples >= SAMPLES * self.dimension


def whitening(z: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Return the mean of z, and ``(Σ + ridge·tr(Σ)/D·I)^{-1/2}`` on the range of Σ."""
    moments = gram_of(z)
    values, vectors = eigh(moments.scatter / len(z))
    keep = values > values[0] * relative_cutoff(len(values), moments.epsilon)
    damped = values[keep] + ridge * values.clamp(min=0).mean()
    return moments.mean, vectors[:, keep] * damped.rsqrt()


def bases(arena: Arena) -> tuple[str, ...]:
    """Return the bases for probes that need a scale: standardised, unit, and white.

    ``"white"`` where it differs much, and samples suffice to tell it from noise.
    """
    features = arena.features()
    found: tuple[str, ...] = ("standardised",)
    if features.suffice:
        z = features.standardised().z.double()
        values = torch.linalg.eigvalsh(z.T @ z / len(z))
        found += ("white",) if bool(values[-1] > UNEQUAL * values[0]) else ()
    return (*found, "unit")


def solve_flops(samples: int, dimension: int, outputs: int) -> float:
    """Return the operations of a ridge solve by normal equations; torch counts no solves."""
    return 2.0 * samples * dimension * (dimension + outputs) + 2 / 3 * dimension**3


def whiten_flops(samples: int, dimension: int) -> float:
    """Return the operations of a covariance, its eigenvectors (about 9D³) and a change of basis."""
    return 4.0 * samples * dimension**2 + 9.0 * dimension**3
