"""Records as a Hugging Face model card: README.md with YAML metadata, and the facts of the page.

The card sets no license, because the owner chooses it. The metadata is JSON, which is YAML too:
``huggingface_hub.ModelCardData`` holds the results of one model, an audit has several.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from immunis.core.records import Record
from immunis.core.shapes import AuditFigures, Data, ImmunizeFigures
from immunis.models.weights import shown
from immunis.report import audit_tables, limits, ratios, tables, text
from immunis.report.about import About, about_of
from immunis.report.evidence import Evidence
from immunis.report.markup import Table, inline
from immunis.report.query import broken, defended, definitions, leading, per_class, require_kinds
from immunis.report.review import review
from immunis.report.runs import audited

TASKS = {"timm": "image-classification", "transformers": "text-classification"}


def model_card(*records: Record, library: str | None = None, about: Any = None) -> str:
    """Return the model card of what was done to a model, and of how it was audited.

    ``library`` builds the model, ``timm`` or ``transformers``; by default it is the recipe's.
    ``about`` is what only the owner can say (``report.about.About``), or a mapping of it.

    Raises:
        InputError: for no record, or one of a kind without a model card.
    """
    require_kinds(records, ("immunize", "audit"), "has no model card")
    records = tuple(record.checked() for record in records)
    library = library or _library(records[0])
    index = [entry for record in records for entry in _index(record, library)]
    folder = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    pages = jinja2.Environment(  # nosec B701 - Markdown: all but what is marked safe passes `_line`
        loader=folder, trim_blocks=True, lstrip_blocks=True, autoescape=False, finalize=_line
    )
    pages.filters |= {"yaml": _yaml, "json": _json}
    pages.globals |= {"text": text, "ratios": ratios, "limits": limits}
    pages.globals |= {"tables": tables, "tables_of": _tables, "shown": shown}
    pages.globals["definitions"] = definitions
    said = about_of(about)
    answers = {record.digest(): review(said, record, _evidence(record, said)) for record in records}
    page = pages.get_template("model_card.md")
    told = {record.digest(): audited(record, records) for record in records}
    known = {"audited": told, "answers": answers, "library": library, "index": index}
    return page.render(records=records, **known).rstrip() + "\n"


def _evidence(record: Record, about: About) -> Evidence | None:
    return Evidence((record,), about) if record.kind == "audit" else None


def _line(value: Any) -> str:
    """Return a value for one line, without marks of code; Markdown that is marked safe as it is."""
    return value if isinstance(value, Markup) else inline(str(value)).replace("`", "'")


def _json(value: Any) -> Markup:
    """Return JSON for a block of code, with nothing that ends the block."""
    return Markup(json.dumps(value, ensure_ascii=False).replace("```", "'''"))  # nosec B704


def _yaml(value: Any) -> Markup:
    """Return a value as JSON with nothing that opens HTML."""
    found = json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, list) else None)
    return Markup(found.replace("<", "\\u003c").replace("\n", "\n  "))  # nosec B704


def _tables(record: Record) -> list[Table]:
    """Return the tables of a record, with primary accuracy by class where it is known."""
    found, names = [], ("before", "after")
    if record.kind == "audit":
        original = record.settings["original"]
        names = (original, leading(record) or original)
        found = [
            audit_tables.highest_table(record),
            audit_tables.worst_case_table(record),
            audit_tables.primary_table(record),
        ]
        found += [audit_tables.points_table(record), audit_tables.shares_table(record)]
        found.append(audit_tables.audit_table(record))
        found += [audit_tables.transfer_table(record)] if record.figures["transfer"] else []
        found.append(audit_tables.predictors_table(record))
    found += [tables.definition_table(record)] if definitions(record) else []
    if set(names) <= per_class(record)[1].keys():
        found.append(tables.class_table(record, *names))
    return found


def _library(record: Record) -> str:
    model = record.settings.get("recipe", {}).get("model", {})
    return next((name for name in TASKS if name in model), "pytorch")


def _index(record: Record, library: str) -> list[dict[str, Any]]:
    """Return the model-index: test scores on the primary task, and the highest of any attack."""
    kind = TASKS["timm"] if library == "timm" else TASKS.get(_library(record), "other")
    if record.kind == "immunize":
        f: ImmunizeFigures = record.figures
        score = f["primary_score"]["after"] if f["primary_score"]["split"] == "test" else None
        return _entry(kind, record.name, [(record.data["primary"], "primary task", score)])
    audited: AuditFigures = record.figures
    found = []
    for name in defended(record):
        case = audited["worst_case"][name]
        highest = f"{case['highest_attack']}, the highest score of {case['attacks']} attacks"
        primary = record.data["primary"], "primary task", audited["models"][name]["primary"]
        reached = None if broken(record, name) else case["highest_accuracy"]
        attack = record.data["attacker"], f"harmful task, {highest} (lower is safer)", reached
        found += _entry(kind, name, [primary, attack])
    return found


def _entry(kind: str, name: str, scores: list[tuple[Data, str, float | None]]) -> list[Any]:
    """Return one model with the scores that are known."""
    results = []
    for task, what, score in scores:
        if score is not None and math.isfinite(score):
            metric = "accuracy" if task["kind"] == "classification" else "r_squared"
            metrics = [{"type": metric, "value": round(score, 4), "name": what}]
            data = {"name": task["name"], "type": task["name"]}
            results.append({"task": {"type": kind}, "dataset": data, "metrics": metrics})
    return [{"name": name, "results": results}] if results else []
