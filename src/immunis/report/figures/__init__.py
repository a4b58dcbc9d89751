"""Figures, drawn from records alone, as PNG or PDF."""

from __future__ import annotations

from collections.abc import Callable

from immunis.core.records import Record
from immunis.report.figures import audit, immunize
from immunis.report.figures.demo import norm_ratios, overview
from immunis.report.figures.spectra import spectra
from immunis.report.query import outlines

Draw = Callable[..., bytes]
__all__ = ["Draw", "figures_of", "norm_ratios", "overview", "spectra"]


OTHERS: dict[str, Callable[[Record], dict[str, Draw]]] = {}  # by kind of record; paper adds its own


def figures_of(record: Record) -> dict[str, Draw]:
    """Return the figures that a record holds the numbers for, by name."""
    if record.kind in OTHERS:
        return OTHERS[record.kind](record)
    if record.kind == "demo":
        return {"overview": overview, "spectra": spectra, "norm_ratios": norm_ratios}
    found: dict[str, Draw] = {}
    if record.kind == "audit":
        found = {
            "cost": audit.cost,
            "scores": audit.scores,
            "advantage": audit.advantage,
            "curves": audit.curves,
        }
        if len(record.figures["models"]) < 2:
            del found["advantage"]
        if not audit.curved(record):
            del found["curves"]
    if record.kind == "immunize" and record.figures["details"].get("history"):
        found["history"] = immunize.history
    if record.kind in ("audit", "immunize") and outlines(record):
        found["spectra"] = spectra
    return found
