"""A record as one self-contained HTML page."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import jinja2

from immunis import figures
from immunis.errors import InputError
from immunis.records import Record, write_text

TEMPLATES = Path(__file__).parent


def number(value: Any) -> str:
    """Format a figure for people: three significant digits, ∞ for infinity, – for nothing.

    >>> number(39468.6), number(0.0281), number(12), number(float("inf"))
    ('3.9e4', '0.0281', '12', '∞')
    """
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return str(value)
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int):
        return f"{value:,}"
    if value != value:
        return "undefined"
    if value == 0 or 1e-3 <= abs(value) < 9999.5:
        return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def render(record: Record) -> str:
    """Return the card of a record as HTML.

    Raises:
        InputError: for a kind of record that has no card.
    """
    template = {"demo": "demo.html", "immunize": "immunize.html"}.get(record.kind)
    if template is None:
        raise InputError(f"a record of kind {record.kind!r} has no card; use demo or immunize.")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["percent"] = lambda share: f"{100 * share:.1f}"
    pictures = {}
    if record.kind == "demo":
        for name, draw in (("spectra", figures.spectra), ("norm_ratios", figures.norm_ratios)):
            pictures[name] = base64.b64encode(draw(record)).decode()
    data = json.dumps(record.to_dict(), ensure_ascii=False).replace("<", "\\u003c")
    return environment.get_template(template).render(record=record, pictures=pictures, data=data)


def write_card(record: Record, path: str | Path) -> Path:
    """Write a record's card."""
    return write_text(path, render(record))
