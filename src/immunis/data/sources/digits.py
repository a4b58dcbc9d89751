"""The 8×8 digits that come with scikit-learn: real data, no download."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from immunis.core.errors import InputError
from immunis.data.sources.common import Tasks
from immunis.data.task import Task

FIRST, LAST = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)


def digits(primary: Sequence[int] = FIRST, harmful: Sequence[int] = LAST, seed: int = 0) -> Tasks:
    """Split the digits by class into a primary and a harmful task.

    Of each class 40% is the defender's training data, 30% the attacker's and 30% is test
    data (the primary task trains on both training parts). Pixels are scaled to 0..1.
    """
    from sklearn.datasets import load_digits

    check_apart(primary, harmful)
    x, y = load_digits(return_X_y=True)
    part = np.empty(len(y), dtype=int)
    rng = np.random.default_rng(seed)
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(y == digit))
        part[rows] = np.searchsorted([0.4, 0.7], np.arange(len(rows)) / len(rows), side="right")

    def select(wanted: Sequence[int], *parts: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.isin(y, wanted) & np.isin(part, parts)
        return x[rows] / 16, y[rows]

    test = select(harmful, 2)
    return Tasks(
        Task(select(primary, 0, 1), select(primary, 2), label_of(primary)),
        Task(select(harmful, 0), test, label_of(harmful)),
        Task(select(harmful, 1), test, f"{label_of(harmful)} (attacker)"),
    )


def digit_parity(shots: int = 60, seed: int = 0) -> Tasks:
    """Return "which of ten digits" as primary task, "odd or even" as harmful task.

    A network that tells the digits apart has done most of the work of telling odd from even,
    so its features help an attacker who holds only ``shots`` labelled samples. Of the 1797
    images 40% train the primary task, 20% are the defender's sample of the harmful one, the
    attacker draws from another 15% and 25% are test data. The harmless ``transfer`` task is
    whether a digit is at least five.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(y))
    ends = [int(share * len(y)) for share in (0.4, 0.6, 0.75)]
    train, defender, attacker, test = np.split(order, ends)
    if not 10 <= shots <= len(attacker):
        raise InputError(f"shots={shots}: expected 10 to {len(attacker)}.")
    few = attacker[:shots]

    def task(rows: np.ndarray, labels: np.ndarray, name: str) -> Task:
        return Task((x[rows], labels[rows]), (x[test], labels[test]), name)

    odd, large = y % 2, (y >= 5).astype(int)
    return Tasks(
        task(train, y, "which digit"),
        task(defender, odd, "odd or even"),
        task(few, odd, "odd or even (attacker)"),
        (task(few, large, "at least five"),),
    )


def check_apart(primary: Sequence[int], harmful: Sequence[int]) -> None:
    """Refuse anything but digits, and a digit in both tasks."""
    for name, wanted in (("primary", primary), ("harmful", harmful)):
        if not wanted or not set(wanted) <= set(range(10)):
            raise InputError(f"{name}={list(wanted)}: expected digits from 0 to 9.")
    if both := sorted(set(primary) & set(harmful)):
        raise InputError(f"digits {both} are in both tasks; a digit is either primary or harmful.")


def label_of(wanted: Sequence[int]) -> str:
    """Return the name of a task of some digits."""
    return "digits " + ",".join(map(str, sorted(wanted)))
