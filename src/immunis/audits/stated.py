"""The threshold of an audit, which counts if it was stated before the first attack had run.

A threshold that is chosen by looking at scores says nothing. So a folder that keeps finished
attacks keeps the threshold too that was stated before them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from immunis.core.errors import InputError
from immunis.core.files import make_folder, read_json, write_text
from immunis.core.jobs import kept_at

NAME = "threshold.json"


def in_time(
    threshold: float | None, folder: str | Path | None, jobs: Iterable[str]
) -> float | None:
    """Return the threshold, or None with a warning if some of the jobs had been done before it."""
    if threshold is None or folder is None:
        return threshold
    note, before = Path(folder) / NAME, None
    if not any(kept_at(folder, key).exists() for key in jobs):
        write_text(make_folder(folder) / NAME, json.dumps({"threshold": threshold}))
        return threshold
    with suppress(InputError):  # there is none
        before = read_json(note, dict).get("threshold")
    if before == threshold:
        return threshold
    warnings.warn(
        f"threshold={threshold:g} was stated after attacks of this audit had run: {folder} holds "
        f"their results, and {'no threshold' if before is None else f'threshold {before}'}. So the "
        "record does not hold it. To state it in advance, give another folder.",
        stacklevel=3,
    )
    return None
