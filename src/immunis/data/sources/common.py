"""What every data source returns, and where files are looked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from immunis.core.errors import InputError
from immunis.data.task import Task

MOST_BYTES, MOST_RATIO = 1 << 30, 100  # that a packed file may unpack to: the larger of the two


class Tasks(NamedTuple):
    """The tasks of one experiment.

    ``attacker`` is the harmful task with training data of the attacker's own, disjoint from
    the sample in ``harmful`` that the defender used; ``transfer`` are harmless other tasks.
    """

    primary: Task
    harmful: Task
    attacker: Task
    transfer: tuple[Task, ...] = ()


def by_turns(labels: Iterable[Any]) -> tuple[list[int], list[int]]:
    """Rows of the defender and of the attacker: within each class they take turns.

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
    most = max(MOST_BYTES, MOST_RATIO * path.stat().st_size)
    if size > most:
        raise InputError(
            f"{path} unpacks to {size:,} bytes or more from {path.stat().st_size:,}; at most "
            f"{most:,} are accepted, lest it fill the memory. If it is yours, save it unpacked."
        )


def data_folder(name: str, folder: str | Path | None) -> Path:
    """Find a folder of data where ``data_file`` looks; an absolute name is taken as it is."""
    return _find(name, folder, "folder", "Pass --data, or set $IMMUNIS_DATA.")


def data_file(name: str, folder: str | Path | None, how: str) -> Path:
    """Find a data file in ``folder``, ``$IMMUNIS_DATA`` or ``~/.cache/immunis``.

    Raises:
        InputError: naming the places searched and ``how`` to get the file.
    """
    return _find(name, folder, "file", how)


def _find(name: str, folder: str | Path | None, kind: str, how: str) -> Path:
    named = os.environ.get("IMMUNIS_DATA")
    places = [Path(named)] if named else []
    places.append(Path.home() / ".cache" / "immunis")
    paths = [place / name for place in (places if folder is None else [Path(folder)])]
    for path in paths:
        if path.is_dir() if kind == "folder" else path.is_file():
            return path
    raise InputError(f"data {kind} not found; looked for {', '.join(map(str, paths))}. {how}")
