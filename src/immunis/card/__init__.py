"""A record as one self-contained HTML page."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import jinja2

from immunis import figures
from immunis.errors import InputError
from immunis.records import Record
from immunis.tables import demo_table, number, percent

TEMPLATES = Path(__file__).parent


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
    environment.filters["percent"] = percent
    pictures, table = {}, None
    if record.kind == "demo":
        table = demo_table(record)
        for draw in (figures.overview, figures.spectra, figures.norm_ratios):
            pictures[draw.__name__] = base64.b64encode(draw(record)).decode()
    data = json.dumps(record.to_dict(), ensure_ascii=False).replace("<", "\\u003c")
    return environment.get_template(template).render(
        record=record, pictures=pictures, data=data, table=table
    )
