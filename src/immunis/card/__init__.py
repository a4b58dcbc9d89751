"""A record as one self-contained HTML page."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import jinja2

from immunis import figures
from immunis.attacks import ATTACKS
from immunis.errors import InputError
from immunis.records import Record
from immunis.tables import (
    Table,
    audit_table,
    demo_table,
    models_table,
    number,
    percent,
    transfer_table,
    worst_case_table,
)

FOLDER = Path(__file__).parent
TEMPLATES = {kind: f"{kind}.html" for kind in ("demo", "immunize", "audit")}


def render(record: Record) -> str:
    """Return the card of a record as HTML.

    Raises:
        InputError: for a kind of record that has no card.
    """
    template = TEMPLATES.get(record.kind)
    if template is None:
        known = ", ".join(TEMPLATES)
        raise InputError(f"a record of kind {record.kind!r} has no card; {known} have one.")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["percent"] = percent
    environment.filters["change"] = _change
    pictures, tables, untested = {}, [], []
    if record.kind == "audit":
        tables = _audit_tables(record)
        untested = [a for a in ATTACKS.values() if a.name not in record.settings["attacks"]]
    if record.kind == "demo":
        tables = [demo_table(record)]
        for draw in (figures.overview, figures.spectra, figures.norm_ratios):
            pictures[draw.__name__] = base64.b64encode(draw(record)).decode()
    data = json.dumps(record.to_dict(), ensure_ascii=False).replace("<", "\\u003c")
    return environment.get_template(template).render(
        record=record, pictures=pictures, data=data, tables=tables, untested=untested
    )


def _audit_tables(record: Record) -> list[Table]:
    wanted = [worst_case_table, audit_table, models_table]
    if record.figures["transfer"]:
        wanted.insert(2, transfer_table)
    return [table(record) for table in wanted]


def _change(after: float | None, before: float | None) -> str:
    """A score and how it changed, in points."""
    if after is None or before is None:
        return "not measured"
    return f"{percent(after)}% ({100 * (after - before):+.1f} points)"
