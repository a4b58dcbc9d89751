"""How much room on disk the inputs of an audit take, told before any of them is read."""

from __future__ import annotations

from immunis.attacks.arrays import array_of
from immunis.data.task import Task


def room_of(harmful: Task, *others: Task) -> int:
    """Return the most bytes that the tasks' inputs take in files at a time.

    Inputs in memory take none. Rows that come in another order each time are sorted, which takes
    them twice for a while, and so does half of the harmful test rows. Data without a length is not
    counted.
    """
    sizes, copies = [0], [0]
    for task in (harmful, *others):
        for split in (task.train, task.test):
            if split is None or split.in_memory:
                continue
            sizes.append((split.count() or 0) * array_of(split.first(1)).nbytes)
            copies.append(0 if split.ordered else sizes[-1])
            if split is harmful.test:
                copies.append(sizes[-1] // 2)
    return sum(sizes) + max(copies)
