"""What every data source returns, and where files are looked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from immunis.errors import InputError
from immunis.tasks import Task


class Tasks(NamedTuple):
    """The tasks of one experiment.

    ``attacker`` is the harmful task with training data of the attacker's own, disjoint from
    the sample in ``harmful`` that the defender used; ``transfer`` are harmless other tasks.
    """

    primary: Task
    harmful: Task
    attacker: Task
    transfer: tuple[Task, ...] = ()


def data_folder(name: str, folder: str | Path | None) -> Path:
    """Find a folder of data in ``folder``, ``$IMMUNIS_DATA`` or ``~/.cache/immunis``.

    An absolute name is taken as it is.
    """
    places = _places(folder)
    for place in places:
        if (place / name).is_dir():
            return place / name
    searched = ", ".join(str(place / name) for place in places)
    raise InputError(f"data folder not found; looked for {searched}. Pass --data, or set it up.")


def _places(folder: str | Path | None) -> list[Path]:
    if folder is not None:
        return [Path(folder)]
    named = os.environ.get("IMMUNIS_DATA")
    return [*([Path(named)] if named else []), Path.home() / ".cache" / "immunis"]


def data_file(name: str, folder: str | Path | None, how: str) -> Path:
    """Find a data file in ``folder``, ``$IMMUNIS_DATA`` or ``~/.cache/immunis``.

    Raises:
        InputError: naming the places searched and ``how`` to get the file.
    """
    places = _places(folder)
    for place in places:
        if (place / name).is_file():
            return place / name
    searched = ", ".join(str(place / name) for place in places)
    raise InputError(f"data file not found; looked for {searched}. {how}")
