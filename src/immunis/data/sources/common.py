"""What every data source returns, and where files are looked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from immunis.core.errors import InputError
from immunis.data.task import Task

MOST_BYTES, MOST_RATIO = 1 << 30, 100  # a packed file may unpack to the larger of the two
CACHE = Path(".cache") / "immunis"  # in the home folder


class Tasks(NamedTuple):
    """The tasks of one experiment.

    ``attacker`` is the harmful task with the attacker's own training data, disjoint from the
    defender's sample in ``harmful``; ``transfer`` are other, harmless tasks.
    """

    primary: Task
    harmful: Task
    attacker: Task
    transfer: tuple[Task, ...] = ()


def by_turns(labels: Iterable[Any]) -> tuple[list[int], list[int]]:
    """Return the defender's and the attacker's rows: within each class they take turns.

    >>> by_turns([7, 7, 3, 7, 3])
    ([0, 2, 3], [1, 4])
    """
    turns: dict[Any, int] = {}
    rows: tuple[list[int], list[int]] = [], []
    for row, label in enumerate(labels):
        turns[label] = turns.get(label, 0) + 1
        rows[1 - turns[label] % 2].append(row)
    return rows


def check_unpacked(path: Path, size: int) -> None:
    """Refuse a file that unpacks to far more than its own size, before it fills the memory."""
    packed = path.stat().st_size
    most = max(MOST_BYTES, MOST_RATIO * packed)
    if size > most:
        came = f"{path} unpacks to {size:,} bytes or more from {packed:,}"
        raise InputError(
            f"{came}; at most {most:,} are accepted. If it is yours, save it unpacked."
        )


def find_data(folder: str | Path | None, how: str, *names: str) -> Path:
    """Return the first of ``names`` in ``folder``, or in ``$IMMUNIS_DATA`` or ``~/.cache/immunis``.

    The error names the places searched and ``how`` to get the data.
    """
    usual = os.environ.get("IMMUNIS_DATA"), Path.home() / CACHE
    places = usual if folder is None else [folder]
    paths = [Path(place) / name for place in places if place for name in names]
    for path in paths:
        if path.exists():
            return path
    raise InputError(f"data not found; looked for {', '.join(map(str, paths))}. {how}")
