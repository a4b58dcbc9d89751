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


def data_file(name: str, folder: str | Path | None, how: str) -> Path:
    """Find a data file in ``folder``, ``$IMMUNIS_DATA`` or ``~/.cache/immunis``.

    Raises:
        InputError: naming the places searched and ``how`` to get the file.
    """
    places = [Path(folder)] if folder is not None else []
    if not places and os.environ.get("IMMUNIS_DATA"):
        places.append(Path(os.environ["IMMUNIS_DATA"]))
    if folder is None:
        places.append(Path.home() / ".cache" / "immunis")
    for place in places:
        if (place / name).is_file():
            return place / name
    searched = ", ".join(str(place / name) for place in places)
    raise InputError(f"data file not found; looked for {searched}. {how}")
