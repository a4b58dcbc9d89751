"""MNIST as the tasks of a reproduction, under two protocols.

*paper*: as in the released code, a task is the images of one digit and all its labels are equal.
Condition numbers are defined, probing accuracy is not. *binary*: a task is a digit against as many
images drawn evenly from the nine others, so that a probe has something to learn. There the primary
task, the defender's sample of the harmful one and the attacker's own sample share no image.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from immunis.attacks.contract import Data, Samples
from immunis.core.errors import InputError
from immunis.data.sources.mnist import standardised
from immunis.data.task import target_matrix
from immunis.theory.gram import Gram, gram_of
from immunis.theory.spectrum import eigh, relative_cutoff

PRIMARY, DEFENDER, ATTACKER = range(3)  # a third of the training images each, in file order


@dataclass(frozen=True)
class Digits:
    """Images as bytes with their labels, 0 to 9, training and test."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    def only(self, digit: int) -> np.ndarray:
        """Every training image of one digit (n×784 bytes)."""
        return self.images[self.labels == digit]

    def against_rest(self, digit: int, part: int) -> tuple[np.ndarray, np.ndarray]:
        """A digit (label 1) against an even draw of the others (0), from a third of the images."""
        third = np.arange(len(self.labels)) % 3 == part
        return _balanced(self.images[third], self.labels[third], digit, seed=part)

    def test_against_rest(self, digit: int) -> tuple[np.ndarray, np.ndarray]:
        """The same from the test images."""
        return _balanced(self.test_images, self.test_labels, digit, seed=0)


def _balanced(
    images: np.ndarray, labels: np.ndarray, digit: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, digit])
    own = np.flatnonzero(labels == digit)
    others = [other for other in range(10) if other != digit]
    rest = np.concatenate(
        [
            rng.permutation(np.flatnonzero(labels == other))[: len(own) // len(others)]
            for other in others
        ]
    )
    rows = rng.permutation(np.concatenate([own, rest]))
    return images[rows], (labels[rows] == digit).astype(np.int64)


def check_pair(primary: int, harmful: int) -> None:
    """Refuse a pair that is not two different digits."""
    if primary == harmful or not {primary, harmful} <= set(range(10)):
        raise InputError(
            f"digits {primary} and {harmful}: a pair is two different digits from 0 to 9."
        )


def read_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Read digit pairs as they are written on the command line, each once.

    >>> read_pairs("3-7, 0-1")
    ((3, 7), (0, 1))
    """
    pairs = []
    for part in text.split(","):
        digits = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", part)
        if digits is None:
            raise InputError(
                f"{part.strip()!r} is not a pair of digits; write PRIMARY-HARMFUL, as in 3-7,0-1."
            )
        primary, harmful = int(digits[1]), int(digits[2])
        check_pair(primary, harmful)
        pairs.append((primary, harmful))
    return tuple(dict.fromkeys(pairs))


@dataclass(frozen=True)
class Task:
    """One task of a pair: its images as bytes, labels, and the Gram of the standardised pixels."""

    images: np.ndarray
    labels: np.ndarray
    gram: Gram

    @classmethod
    def of(cls, images: np.ndarray, labels: np.ndarray) -> Task:
        """Collect the moments, once for every pair the task is in."""
        hot = target_matrix(torch.from_numpy(labels), "classification", int(labels.max()) + 1)
        moments = gram_of(torch.from_numpy(standardised(images)), hot)
        return cls(images, labels, moments)


@dataclass(frozen=True)
class JointRange:
    """The directions that either of two tasks uses: an orthonormal basis V (784×r).

    ``κ(θᵀKθ)`` sees θ through V only, so nothing is lost by working in these r coordinates, and
    a step costs ``(784/r)²`` times less.
    """

    grams: tuple[Gram, Gram]

    @cached_property
    def basis(self) -> Tensor:
        """V, from the eigenvectors of the two tasks' mean second moments together."""
        values, vectors = eigh(sum(g.matrix() / g.samples for g in self.grams))  # type: ignore[arg-type]
        keep = values > values[0] * relative_cutoff(len(values))
        return vectors[:, keep]

    def coordinates(self, images: np.ndarray) -> Tensor:
        """Standardised pixels in the basis (n×r, float64)."""
        return torch.from_numpy(standardised(images)) @ self.basis

    def moments(self) -> tuple[Gram, Gram]:
        """Both Grams in the basis."""
        return self.grams[0].transform(self.basis), self.grams[1].transform(self.basis)

    def samples(
        self, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]
    ) -> Samples:
        """An attacker's task in the basis."""
        parts = [Data(self.coordinates(x).numpy(), y) for x, y in (train, test)]
        return Samples("classification", 2, parts[0], parts[1])
