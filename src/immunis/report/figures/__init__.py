"""Figures, drawn from records alone: PNG to look at, PDF to print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from immunis.core.files import release
from immunis.core.records import Record
from immunis.report.figures import audit
from immunis.report.figures.defence import history, norm_ratios, overview, spectra
from immunis.report.query import outlines, require_kinds

Draw = Callable[..., bytes]
OTHERS: dict[str, Callable[[Record], dict[str, Draw]]] = {}  # by kind of record; paper adds its own


def figures_of(record: Record) -> dict[str, Draw]:
    """Return the figures that a record holds the numbers for, by name.

    Raises:
        InputError: for a kind of record without figures.
    """
    if record.kind in OTHERS:
        return OTHERS[record.kind](record)
    if record.kind == "demo":
        return {"overview": overview, "spectra": spectra, "norm_ratios": norm_ratios}
    require_kinds([record], ("audit", "immunize", "demo", *OTHERS), "has no figures")
    found: dict[str, Draw] = {}
    if record.kind == "audit":
        found = {"cost": audit.cost, "scores": audit.scores}
        if len(record.figures["models"]) > 1:
            found["advantage"] = audit.advantage
        if audit.curved(record):
            found["curves"] = audit.curves
    elif record.figures["details"].get("history"):
        found["history"] = history
    return {**found, "spectra": spectra} if outlines(record) else found


def write_figures(paths: Sequence[str | Path], folder: str | Path) -> list[Path]:
    """Draw the figures of record files into a folder; return the paths.

    A figure's name begins with the name of its record's file, or of the folder where the file is
    called ``record.json``.
    """
    records = {name: Record.load(path) for name, path in zip(_names(paths), paths, strict=True)}
    made = {
        f"{name}-{figure}.{kind}": draw(record, kind)
        for name, record in records.items()
        for figure, draw in figures_of(record).items()
        for kind in ("png", "pdf")
    }
    return release(folder, made)


def _names(paths: Sequence[str | Path]) -> list[str]:
    """Return a name for each record file, numbered where one comes twice."""
    found: list[str] = []
    for path in map(Path, paths):
        name = path.absolute().parent.name if path.stem == "record" else path.stem
        count = sum(other == name or other.startswith(f"{name}-") for other in found)
        found.append(f"{name}-{count + 1}" if name in found else name)
    return found
