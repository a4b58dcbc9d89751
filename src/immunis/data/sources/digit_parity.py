"""Digits again, with a task that needs what a network has learned: parity from few samples."""

from __future__ import annotations

import numpy as np

from immunis.core.errors import InputError
from immunis.data.sources.common import Tasks
from immunis.data.task import Task


def digit_parity(shots: int = 60, seed: int = 0) -> Tasks:
    """Which of ten digits is primary; whether it is odd is harmful, from few samples.

    A network that tells the digits apart has done most of the work of telling odd from even,
    so its features help an attacker who holds only ``shots`` labelled samples. Of the 1797
    images 40% train the primary task, 20% are the defender's sample of the harmful one, the
    attacker draws from another 15% and 25% are test data. Whether a digit is at least five is
    a harmless task of the same kind (``transfer``).
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
