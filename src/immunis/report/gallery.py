"""Every figure of any record, in a folder: PNG to look at, PDF to print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from immunis.core.errors import InputError
from immunis.core.files import release
from immunis.core.records import Record
from immunis.report.figures import Draw, figures_of
from immunis.report.query import complete


def drawings(record: Record) -> dict[str, Draw]:
    """The figures of a record by name.

    Raises:
        InputError: for a kind of record without figures.
    """
    found = figures_of(record)
    if not found:
        raise InputError(
            f"a record of kind {record.kind!r} has no figures; demo, immunize, audit and reproduce "
            "have some."
        )
    return found


def write_figures(paths: Sequence[str | Path], folder: str | Path) -> list[Path]:
    """Draw the figures of record files into a folder; return the paths.

    Their names begin with that of the record: of its file, or of its folder where the file is
    called ``record.json``.
    """
    records = {name: Record.load(path) for name, path in zip(_names(paths), paths, strict=True)}
    with complete("figure"):
        made = {
            f"{name}-{figure}.{kind}": draw(record, kind)
            for name, record in records.items()
            for figure, draw in drawings(record).items()
            for kind in ("png", "pdf")
        }
    return release(folder, made)


def _names(paths: Sequence[str | Path]) -> list[str]:
    """A name for each record file, numbered where one comes twice."""
    found: list[str] = []
    for path in map(Path, paths):
        name = path.absolute().parent.name if path.stem == "record" else path.stem
        count = sum(other == name or other.startswith(f"{name}-") for other in found)
        found.append(f"{name}-{count + 1}" if name in found else name)
    return found
