"""MNIST as the tasks of the experiment, under two protocols.

*paper*: as in the released code a task is the images of one digit, labelled 0 (primary) or 1
(harmful), as many of both. Condition numbers are defined, probing accuracy is not. *binary*: a task
is a digit against as many images drawn evenly from the nine others, so a probe has something to
learn. There the primary task, the defender's sample of the harmful task and the attacker's own
sample share no image.
"""

from __future__ import annotations

import re

import numpy as np

from immunis.attacks.arrays import Data, Samples
from immunis.core.errors import InputError
from immunis.data.sources.digit_images import standardised

PRIMARY, DEFENDER, ATTACKER = range(3)  # a third of the training images each, in file order
Images = tuple[np.ndarray, ...]  # images (n×784 bytes) and digits (n)
Rows = tuple[np.ndarray, np.ndarray]  # which images, and their labels in a task


def paired_rows(digits: np.ndarray, protocol: str, pair: tuple[int, int], seed: int) -> list[Rows]:
    """Return the rows of the primary and of the harmful task, as many of both; the seed draws."""
    if protocol == "paper":
        own = [np.flatnonzero(digits == digit) for digit in pair]
        tasks = [(rows, np.full(len(rows), label)) for label, rows in enumerate(own)]
    else:
        parts = (PRIMARY, DEFENDER)
        tasks = [against_rest(digits, *each) for each in zip(pair, parts, strict=True)]
    rng, count = np.random.default_rng(seed), min(len(rows) for rows, _ in tasks)
    kept = [rng.choice(len(rows), count, replace=False) for rows, _ in tasks]
    return [(rows[k], labels[k]) for (rows, labels), k in zip(tasks, kept, strict=True)]


def against_rest(digits: np.ndarray, digit: int, part: int | None = None) -> Rows:
    """Return a digit (label 1) and an even draw of the others (0), from all images or a third."""
    third = np.full(len(digits), True) if part is None else np.arange(len(digits)) % 3 == part
    rng = np.random.default_rng([part or 0, digit])
    own = np.flatnonzero(third & (digits == digit))
    others = [np.flatnonzero(third & (digits == other)) for other in range(10) if other != digit]
    rest = [rng.permutation(rows)[: len(own) // 9] for rows in others]
    rows = rng.permutation(np.concatenate([own, *rest]))
    return rows, (digits[rows] == digit).astype(np.int64)


def attacker_samples(train: Images, test: Images, digit: int, rows: int, seed: int) -> Samples:
    """Return an attacker's binary task: ``rows`` training rows, half of each class; and tests."""
    own, labels = against_rest(train[1], digit, ATTACKER)
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(np.flatnonzero(labels == label))[: rows // 2] for label in (0, 1)]
    kept = np.sort(np.concatenate(drawn))
    held, scored = against_rest(test[1], digit)
    return Samples(
        "classification",
        2,
        Data(standardised(train[0][own[kept]]), labels[kept]),
        Data(standardised(test[0][held]), scored),
    )


def read_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Read digit pairs as the command line gives them, each once.

    >>> read_pairs("3-7, 0-1")
    ((3, 7), (0, 1))
    """
    if not re.fullmatch(r"\s*\d-\d\s*(,\s*\d-\d\s*)*", text):
        raise InputError(f"{text!r}: expected pairs of digits PRIMARY-HARMFUL, as in 3-7,0-1.")
    return tuple(dict.fromkeys((int(p), int(h)) for p, h in re.findall(r"(\d)-(\d)", text)))
