"""Records as one self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from immunis.core.errors import InputError
from immunis.core.locks import publish
from immunis.core.records import Record
from immunis.report import audit_tables, charts, limits, query, ratios, style, tables, text
from immunis.report.about import About, about_of
from immunis.report.compare import compare
from immunis.report.evidence import Evidence, refusal
from immunis.report.format import number, percent, steps_of
from immunis.report.heat import by_layer, by_model, of_demo
from immunis.report.model_card import model_card
from immunis.report.review import review
from immunis.report.runs import subjects
from immunis.report.tiles import audit_tiles, immunize_tiles

KINDS = ("demo", "immunize", "audit")
FOLDER = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
PAGES = jinja2.Environment(loader=FOLDER, autoescape=True, trim_blocks=True, lstrip_blocks=True)
PAGES.undefined = jinja2.StrictUndefined
PAGES.filters |= {"number": number, "steps_of": steps_of}
PAGES.globals |= {"style": style, "tables": tables, "audit_tables": audit_tables}
PAGES.globals |= {"text": text, "ratios": ratios, "limits": limits}
NORM_RATIO = "‖w_t − w*‖² / ‖w_0 − w*‖²"
Said = About | Mapping[str, Any] | None


def render(*records: Record, about: Said = None) -> str:
    """Return the card of a record, or of several, as HTML.

    Audits of the same models are judged together. Other records stand side by side.

    Args:
        records: of kinds ``audit``, ``immunize`` or ``demo``.
        about: what only the owner can say (``report.about.About``), or a mapping of it.

    Raises:
        InputError: for records that have no card, cannot be compared or do not fit their shape.
        SettingsError: for an unknown key or a wrong value in ``about``.
    """
    query.require_kinds(records, KINDS, "has no card")
    records = tuple(record.checked() for record in records)
    said, found = about_of(about), subjects(records)
    compared = compare(records) if len(records) > 1 else None
    embedded = []
    for place, record in enumerate(records, 1):
        content = json.dumps(record.to_dict(), ensure_ascii=False).replace("<", "\\u003c")
        embedded.append(("record" if place == 1 else f"record-{place}", content))
    sections = [_section(of, said) for of in found]
    page = PAGES.get_template("page.html")
    return page.render(sections=sections, compared=compared, embedded=embedded, count=len(records))


def write_card(path: str | Path, *found: Any, about: Said = None) -> Path:
    """Write the card of records, or of results that hold one (of ``audit`` and ``immunize``).

    It is a page, or a model card where the file's name ends in ``.md``.
    """
    make: Any = {".html": render, ".htm": render, ".md": model_card}.get(Path(path).suffix.lower())
    if make is None:
        raise InputError(f"{path}: a card is a page (.html) or a model card (.md); name it so.")
    records = [getattr(each, "record", each) for each in found]
    for record in records:
        if not isinstance(record, Record):
            kind = type(record).__name__
            raise InputError(f"a {kind} came; expected records, or results of audit or immunize.")
    return publish(path, make(*records, about=about))


def _section(records: Sequence[Record], about: About) -> dict[str, Any]:
    """Return what the page says of one subject: of a model, or of a pair of tasks."""
    first = records[0]
    audits, immunized = (
        tuple(each for each in records if each.kind == kind) for kind in ("audit", "immunize")
    )
    evidence = Evidence(audits, about, immunized) if audits else None
    content = _audit(evidence) if evidence else CONTENT[first.kind](first)
    lines = (limits.not_tested(each, bool(audits)) for each in audits or [first])
    unknown = dict.fromkeys(line for of in ([*about.known_breaks], *lines) for line in of)
    return {
        "kind": first.kind,
        "records": records,
        "audited": bool(audits),
        "not_tested": unknown,
        "review": review(about, first, evidence) if first.kind != "demo" else [],
        **content,
    }


def _audit(evidence: Evidence) -> dict[str, Any]:
    f, first = evidence.first.figures, evidence.first
    names, trio = evidence.names, evidence.trio
    unit: Any = "steps" if evidence.cost.unit == "steps" else "flops"
    curves = {name: query.envelope(name, unit, *evidence.audits) for name in trio}
    ends = (f"{name} {percent(of[-1][1])}%" for name, of in curves.items() if of)
    levels = {"chance": f["chance"], "threshold": evidence.limit}
    drawn = partial(
        charts.lines,
        curves,
        f"Best score of any attack by what it cost. In the end: {', '.join(ends)}.",
        (f"{evidence.cost.unit} the attacker spends", "best attacker's score"),
        names=names,
        stairs=True,
        levels=levels,
    )
    broken = [name for name in f["models"] if query.broken(first, name)]
    return {
        "title": evidence.about.model or evidence.model,
        "subtitle": first.name,
        "judgement": evidence.judgement,
        "evidence": evidence,
        "tiles": audit_tiles(evidence),
        "cost": charts.both(lambda frame: drawn(frame=frame)),
        "cost_legend": charts.legend(trio, names, broken),
        "heat": by_model(evidence),
        "layers": by_layer(evidence),
        "curves": [_curves(record, names) for record in evidence.audits],
        "legend": charts.legend(_told_apart(names), names, broken),
        "spectra": _spectra(first, names),
        "classes": _classes(first, evidence.original, evidence.model),
    }


def _curves(record: Record, names: list[str]) -> dict[str, Markup]:
    """Return the learning curve of every attack that learns in steps."""
    found = {}
    for attack, by_name in record.figures["attacks"].items():
        given = ((n, by_name[n]) for n in _told_apart(names) if n in by_name)
        rows = {n: row["curve"] for n, row in given if row["status"] == "done"}
        if max((len(curve) for curve in rows.values()), default=0) > 2:
            series = {n: [(max(p["steps"], 1), p["mean"]) for p in c] for n, c in rows.items()}
            ends = (f"{n} {percent(c[-1]['mean'])}%" for n, c in rows.items() if c)
            label = f"Score of {attack} by steps. In the end: {', '.join(ends)}."
            look: Any = {"names": names, "frame": charts.SMALL}
            found[attack] = charts.lines(series, label, ("steps", ""), **look)
    return found


def _told_apart(names: list[str]) -> list[str]:
    """Return the models whose lines differ in look: the first few, and the control."""
    return [*names[:-1][: charts.SERIES], names[-1]]


def _immunize(record: Record) -> dict[str, Any]:
    names, refused = ["before", "after"], refusal([record])
    return {
        **({"judgement": refused} if refused else {}),
        "title": record.name,
        "subtitle": f"immunized with {record.settings['method']}",
        "tiles": immunize_tiles(record),
        "spectra": _spectra(record, names),
        "classes": _classes(record, *names),
    }


def _demo(record: Record) -> dict[str, Any]:
    methods = record.figures["methods"]
    names = list(methods)
    ratios = {}
    for role in query.ROLES:
        series = {}
        for name in names:
            row = methods[name]["norm_ratio"]
            points = zip(row["steps"], row[role], strict=True)
            series[name] = [(step, value) for step, value in points if step > 0 and value >= 1e-3]
        label = f"Distance of a probe's weights from their optimum by step, {role} task"
        axes = ("probing step", NORM_RATIO)
        ratios[role] = charts.lines(series, label, axes, names=names, kinds=("log", "log"))
    return {
        "title": record.name,
        "subtitle": "every linear method on one pair of tasks",
        "tiles": [],
        "heat": of_demo(record),
        "spectra": _spectra(record, names),
        "norm_ratios": ratios,
        "legend": charts.legend(names, names),
    }


CONTENT = {"demo": _demo, "immunize": _immunize}


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
    strip, pair = None, list(dict.fromkeys([before, after]))
    if len(labels) >= query.LARGE:
        drawn = partial(
            charts.lines,
            {n: [(k, scores[n][i]) for k, i in enumerate(order, 1)] for n in pair},
            f"Accuracy on each of {len(labels)} classes, {before} and {after}",
            (f"classes, sorted by the accuracy of {before}", "accuracy"),
            names=pair,
            kinds=("order", "share"),
            marks=[after] if after != before else [],
        )
        strip = charts.both(lambda frame: drawn(frame=frame), charts.FULL)
    legend = charts.legend(pair, pair)
    table = tables.class_table(record, before, after)
    return {"table": table, "strip": strip, "legend": legend, "count": len(labels)}
