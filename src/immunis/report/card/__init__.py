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
from immunis.report import figures, style
from immunis.report import query as views
from immunis.report import text as statements
from immunis.report.card import charts
from immunis.report.compare import compare
from immunis.report.format import number
from immunis.report.model_card import model_card
from immunis.report.tables import (
    audit_table,
    class_table,
    demo_table,
    foretold_table,
    spectra_table,
    transfer_table,
    worst_case_table,
)

FOLDER = Path(__file__).parent


def render(*records: Record) -> str:
    """Return the card of a record, or of several side by side, as HTML.

    Raises:
        InputError: for a kind of record that has no card, records that cannot be compared, or one
            that lacks what a card shows.
    """
    if not records:
        raise InputError("no record came; a card needs at least one.")
    for record in records:
        if record.kind not in list(VIEWS):  # a kind that is no text has no hash
            known = ", ".join(VIEWS)
            raise InputError(f"a record of kind {record.kind!r} has no card; {known} have one.")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.globals["style"] = style
    environment.globals["infinity"] = math.inf
    with views.complete("card"):
        compared = compare(records) if len(records) > 1 else None
        sections = [
            {
                "record": record,
                "id": "record" if place == 1 else f"record-{place}",
                "json": json.dumps(record.to_dict(), ensure_ascii=False).replace("<", "\\u003c"),
                "headline": statements.headline(record),
                "untested": statements.not_tested(record),
                **VIEWS[record.kind](record),
            }
            for place, record in enumerate(records, 1)
        ]
        try:
            page = environment.get_template("page.html")
            return page.render(sections=sections, compared=compared)
        except jinja2.UndefinedError as error:
            raise KeyError(str(error)) from error


def write_card(path: str | Path, *records: Record) -> Path:
    """Write the card of records: a page, or a model card where the file's name ends in ``.md``."""
    kinds = {".html": render, ".htm": render, ".md": model_card}
    make = kinds.get(Path(path).suffix.lower())
    if make is None:
        raise InputError(f"{path}: a card is a page (.html) or a model card (.md); name it so.")
    return publish(path, make(*records))


def _audit(record: Record) -> dict[str, Any]:
    f, original = record.figures, record.settings["original"]
    names = [*f["models"], CONTROL]
    lead = views.leading(record) or original
    broken = [name for name, row in f["models"].items() if row["broken"]]
    shown = [original, *([lead] if lead != original else []), CONTROL]
    cost = views.telling_cost(record)
    curves = {name: views.envelope(record, name, cost) for name in shown}
    most = curves[original][-1][1] if curves[original] else math.nan
    target = f["chance"] + REACH * (most - f["chance"])
    scores = {
        attack: {n: rows[n]["score"]["mean"] for n in names if "score" in rows.get(n, {})}
        for attack, rows in f["attacks"].items()
    }
    tables = [worst_case_table(record), audit_table(record)]
    if f["transfer"]:
        tables.append(transfer_table(record))
    return {
        "names": names,
        "styles": {name: charts.style(name, names) for name in names},
        "legend": charts.legend(names, names, broken),
        "threat": statements.threat_model(record),
        "columns": statements.COLUMNS,
        "cost": charts.lines(
            curves,
            f"Best score of any attack by cost, for {', '.join(shown)}",
            (f"{views.UNITS[cost]} the attacker spends", "best test score"),
            names=names,
            stairs=True,
            level=f["chance"],
        ),
        "cost_legend": charts.legend(shown, names, broken),
        "worst": f["worst_case"][lead]["attack"],
        "target": target,
        "unit": views.UNITS[cost],
        "costs": {name: views.cost_to(curve, target) for name, curve in curves.items()},
        "dots": charts.dots(scores, names, f["chance"], "Test score of every attack on each model"),
        "tables": tables,
        "models": foretold_table(record),
        "classes": _classes(record, original, lead),
        "spectra": _spectra(record, names),
    }


def _immunize(record: Record) -> dict[str, Any]:
    names = ["before", "after"]
    parts = {"spectra": _spectra(record, names), "classes": _classes(record, *names)}
    return {**parts, "unlike": statements.unlike(record)}


def _demo(record: Record) -> dict[str, Any]:
    pictures = {
        draw.__name__: base64.b64encode(draw(record)).decode()
        for draw in (figures.overview, figures.spectra, figures.norm_ratios)
    }
    return {"pictures": pictures, "table": demo_table(record)}


VIEWS = {"demo": _demo, "immunize": _immunize, "audit": _audit}


def _spectra(record: Record, names: list[str]) -> dict[str, Any] | None:
    """Charts of both spectra, their table, and what bounds the ratio."""
    found = views.outlines(record)
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
    shown = list(found["primary"])
    return {
        "charts": drawn,
        "legend": charts.legend(shown, names),
        "table": spectra_table(record),
        "ceiling": statements.ceiling(record),
    }


def _classes(record: Record, before: str, after: str) -> dict[str, Any] | None:
    """Primary accuracy by class: a table, and a strip where there are many classes."""
    labels, scores = views.per_class(record)
    if not {before, after} <= scores.keys():
        return None
    order = sorted(range(len(labels)), key=lambda i: scores[before][i])
    strip = None
    if len(labels) >= views.LARGE:
        strip = charts.lines(
            {n: [(k, scores[n][i]) for k, i in enumerate(order, 1)] for n in (before, after)},
            f"Accuracy on each of {len(labels)} classes, {before} and {after}",
            (f"classes, sorted by the accuracy of {before}", "accuracy"),
            names=list(scores),
            kinds=("order", "share"),
            marks=[after] if after != before else [],
        )
    return {
        "table": class_table(record, before, after),
        "strip": strip,
        "legend": charts.legend([before, after], list(scores)),
        "count": len(labels),
    }
