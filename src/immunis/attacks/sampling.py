"""Which of the attacker's rows a seed has, and in which order they are divided.

Seeds that all have the same rows tell nothing of other rows. So each leaves out a fifth of every
class, another fifth each time. That costs an attacker a fifth of the rows. Samples with replacement
would cost more (37% of the rows), and shares without overlap most.
"""

from __future__ import annotations

import numpy as np

PARTS = 5


def sample(labels: np.ndarray, kind: str, draw: int | None) -> np.ndarray:
    """Return the places of one attacker's rows: all (None), or all but a fifth of every class.

    Draws 0 to 4 leave out each row once, draws 5 to 9 in another order, and so on. A row that is
    alone in its class is never left out. Fewer than five rows are all kept.
    """
    everything = np.arange(len(labels))
    if draw is None:
        return everything
    turn, part = divmod(draw, PARTS)
    order, alone = by_class(labels, kind, turn)
    size = len(labels) // PARTS
    out = order[part * size : (part + 1) * size]
    return np.setdiff1d(everything, out[~alone[out]])


def by_class(labels: np.ndarray, kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all places in a random order, and which rows are alone in their class.

    Every stretch of the order has its share of each class, give or take a row.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    if kind != "classification":
        return order, np.zeros(len(labels), dtype=bool)
    _, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    grouped = np.argsort(which[order], kind="stable")  # class by class
    place = np.empty(len(order))  # of a row among those of its class: between 0 and 1
    place[grouped] = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    return order[np.argsort(place, kind="stable")], (counts == 1)[which]
