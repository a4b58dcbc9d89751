"""Records as one self-contained HTML page."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import jinja2

from immunis.core.controls import CONTROL, REACH
from immunis.core.errors import InputError
from immunis.core.files import publish
from immunis.core.records import Record
from immunis.core.shapes import AuditFigures
from immunis.report import query, style, tables, text
from immunis.report.card import charts
from immunis.report.compare import compare
from immunis.report.figures import figures_of
from immunis.report.format import number
from immunis.report.model_card import model_card

KINDS = ("demo", "immunize", "audit")
FOLDER = jinja2.FileSystemLoader(Path(__file__).parent)
PAGES = jinja2.Environment(loader=FOLDER, autoescape=True, trim_blocks=True, lstrip_blocks=True)
PAGES.undefined = jinja2.StrictUndefined
PAGES.filters["number"] = number
PAGES.globals |= {"infinity": math.inf, "style": style, "tables": tables, "text": text}


def render(*records: Record) -> str:
    """Return the card of a record, or of several side by side, as HTML.

    Raises:
        InputError: for records that have no card, cannot be compared or do not fit their shape.
    """
    query.require_kinds(records, KINDS, "has no card")
    records = tuple(record.checked() for record in records)
    compared = compare(records) if len(records) > 1 else None
    sections = []
    for place, record in enumerate(records, 1):
        name = "record" if place == 1 else f"record-{place}"
        content = json.dumps(record.to_dict(), ensure_ascii=False).replace("<", "\\u003c")
        section = SECTIONS[record.kind](record)
        sections.append({"record": record, "id": name, "json": content, **section})
    return PAGES.get_template("page.html").render(sections=sections, compared=compared)


def write_card(path: str | Path, *records: Record) -> Path:
    """Write the card of records: a page, or a model card where the file's name ends in ``.md``."""
    make = {".html": render, ".htm": render, ".md": model_card}.get(Path(path).suffix.lower())
    if make is None:
        raise InputError(f"{path}: a card is a page (.html) or a model card (.md); name it so.")
    return publish(path, make(*records))


def _audit(record: Record) -> dict[str, Any]:
    f: AuditFigures = record.figures
    original = record.settings["original"]
    names = [*f["models"], CONTROL]
    lead = query.leading(record) or original
    shown = list(dict.fromkeys([original, lead, CONTROL]))
    broken = [name for name, row in f["models"].items() if row["broken"]]
    cost = query.telling_cost(record)
    curves = {name: query.envelope(record, name, cost) for name in shown}
    most = curves[original][-1][1] if curves[original] else math.nan
    target = f["chance"] + REACH * (most - f["chance"])
    scores = {name: query.scores(f["attacks"], name) for name in names}
    by_attack = {
        attack: {name: scores[name][attack] for name in names if attack in scores[name]}
        for attack in f["attacks"]
    }
    return {
        "names": names,
        "styles": {name: charts.style(name, names) for name in names},
        "legend": charts.legend(names, names, broken),
        "cost": charts.lines(
            curves,
            f"Best score of any attack by cost, for {', '.join(shown)}",
            (f"{query.UNITS[cost]} the attacker spends", "best test score"),
            names=names,
            stairs=True,
            level=f["chance"],
        ),
        "cost_legend": charts.legend(shown, names, broken),
        "worst": f["worst_case"][lead]["attack"],
        "target": target,
        "unit": query.UNITS[cost],
        "costs": {name: query.cost_to(curve, target) for name, curve in curves.items()},
        "dots": charts.dots(by_attack, names, f["chance"], "Test score of every attack by model"),
        "classes": _classes(record, original, lead),
        "spectra": _spectra(record, names),
    }


def _immunize(record: Record) -> dict[str, Any]:
    names = ["before", "after"]
    return {"spectra": _spectra(record, names), "classes": _classes(record, *names)}


def _demo(record: Record) -> dict[str, Any]:
    drawn = figures_of(record).items()
    return {"pictures": {name: base64.b64encode(draw(record)).decode() for name, draw in drawn}}


SECTIONS = {"demo": _demo, "immunize": _immunize, "audit": _audit}


def _spectra(record: Record, names: list[str]) -> dict[str, Any] | None:
    """Return charts of both spectra, and their legend."""
    found = query.outlines(record)
    if not found:
        return None
    drawn = {
        role: charts.lines(
            {name: list(zip(o.places, o.values, strict=True)) for name, o in by_model.items()},
            f"Eigenvalues of the {role} task's features, each over the largest",
            ("index", "eigenvalue / largest"),
            names=names,
            kinds=("log", "log"),
        )
        for role, by_model in found.items()
    }
    return {"charts": drawn, "legend": charts.legend(list(found["primary"]), names)}


def _classes(record: Record, before: str, after: str) -> dict[str, Any] | None:
    """Return primary accuracy by class: a table, and a chart where there are many classes."""
    labels, scores = query.per_class(record)
    if not {before, after} <= scores.keys():
        return None
    order = sorted(range(len(labels)), key=lambda i: scores[before][i])
    strip = None
    if len(labels) >= query.LARGE:
        strip = charts.lines(
            {n: [(k, scores[n][i]) for k, i in enumerate(order, 1)] for n in (before, after)},
            f"Accuracy on each of {len(labels)} classes, {before} and {after}",
            (f"classes, sorted by the accuracy of {before}", "accuracy"),
            names=list(scores),
            kinds=("order", "share"),
            marks=[after] if after != before else [],
        )
    legend = charts.legend([before, after], list(scores))
    table = tables.class_table(record, before, after)
    return {"table": table, "strip": strip, "legend": legend, "count": len(labels)}
