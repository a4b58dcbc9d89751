"""MNIST as the tasks of the experiment, under two protocols.

*paper*: as in the released code a task is the images of one digit, and all its labels are equal.
Condition numbers are defined, probing accuracy is not. *binary*: a task is a digit against as many
images drawn evenly from the nine others, so a probe has something to learn. There the primary
task, the defender's sample of the harmful task and the attacker's own sample share no image.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from immunis.attacks.contract import Data, Samples
from immunis.core.errors import InputError
from immunis.data.sources.digits import standardised
from immunis.data.task import target_matrix
from immunis.theory.gram import Gram, gram_of
from immunis.theory.spectrum import eigh, relative_cutoff

PRIMARY, DEFENDER, ATTACKER = range(3)  # a third of the training images each, in file order
Labelled = tuple[np.ndarray, ...]  # images (n×784 bytes) and labels (n)


class DigitTask(NamedTuple):
    """One task of a pair: images as bytes, labels, and the Gram of the standardised pixels."""

    images: np.ndarray
    labels: np.ndarray
    gram: Gram


def digit_task(data: Labelled, digit: int, part: int | None = None) -> DigitTask:
    """Return a digit alone, with labels 0, or a digit against the rest in a third of the images."""
    images = data[0][data[1] == digit]
    labels = np.zeros(len(images), np.int64)
    if part is not None:
        images, labels = against_rest(data, digit, part)
    hot = target_matrix(torch.from_numpy(labels), "classification", int(labels.max()) + 1)
    return DigitTask(images, labels, gram_of(torch.from_numpy(standardised(images)), hot))


def against_rest(data: Labelled, digit: int, part: int | None = None) -> Labelled:
    """Return a digit (label 1) and an even draw of the others (0), from all images or a third."""
    images, labels = data
    if part is not None:
        third = np.arange(len(labels)) % 3 == part
        images, labels = images[third], labels[third]
    rng = np.random.default_rng([part or 0, digit])
    own = np.flatnonzero(labels == digit)
    others = [np.flatnonzero(labels == other) for other in range(10) if other != digit]
    rest = [rng.permutation(rows)[: len(own) // 9] for rows in others]
    rows = rng.permutation(np.concatenate([own, *rest]))
    return images[rows], (labels[rows] == digit).astype(np.int64)


def read_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Read digit pairs as the command line gives them, each once.

    >>> read_pairs("3-7, 0-1")
    ((3, 7), (0, 1))
    """
    if not re.fullmatch(r"\s*\d-\d\s*(,\s*\d-\d\s*)*", text):
        raise InputError(f"{text!r}: expected pairs of digits PRIMARY-HARMFUL, as in 3-7,0-1.")
    return tuple(dict.fromkeys((int(p), int(h)) for p, h in re.findall(r"(\d)-(\d)", text)))


def joint_basis(primary: Gram, harmful: Gram) -> Tensor:
    """Return an orthonormal basis V (784×r) of the directions that either task uses.

    ``κ(θᵀKθ)`` sees θ through V only. Working in these r coordinates therefore loses nothing, and
    a step costs ``(784/r)²`` times less.
    """
    values, vectors = eigh(primary.matrix() / primary.samples + harmful.matrix() / harmful.samples)
    return vectors[:, values > values[0] * relative_cutoff(len(values))]


def coordinates(images: np.ndarray, basis: Tensor) -> Tensor:
    """Return standardised pixels in a basis (n×r, float64)."""
    return torch.from_numpy(standardised(images)) @ basis


def attacker_samples(
    train: Labelled, test: Labelled, basis: Tensor, rows: int, seed: int
) -> Samples:
    """Return an attacker's binary task in a basis: ``rows`` training rows, half of each class."""
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(np.flatnonzero(train[1] == label))[: rows // 2] for label in (0, 1)]
    kept = np.sort(np.concatenate(drawn))
    own = train[0][kept], train[1][kept]
    parts = [Data(coordinates(x, basis).numpy(), y) for x, y in (own, test)]
    return Samples("classification", 2, *parts)
