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

from immunis.core.records import Record
from immunis.core.shapes import AuditFigures, Data, ImmunizeFigures
from immunis.models.rebuild import shown
from immunis.report import tables, text
from immunis.report.format import Table, inline
from immunis.report.query import defended, leading, per_class, require_kinds

TASKS = {"timm": "image-classification", "transformers": "text-classification"}


def model_card(*records: Record, library: str | None = None) -> str:
    """Return the model card of what was done to a model, and of how it was audited.

    ``library`` builds the model, ``timm`` or ``transformers``; by default it is the recipe's.

    Raises:
        InputError: for no record, or one of a kind without a model card.
    """
    require_kinds(records, ("immunize", "audit"), "has no model card")
    records = tuple(record.checked() for record in records)
    library = library or _library(records[0])
    index = [entry for record in records for entry in _index(record, library)]
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    pages = jinja2.Environment(  # nosec B701 - Markdown, of which every name passes `line`
        loader=folder, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    pages.filters |= {"line": _line, "yaml": _yaml, "json": _json}
    pages.globals |= {"text": text, "tables": tables, "tables_of": _tables, "shown": shown}
    page = pages.get_template("model_card.md")
    return page.render(records=records, library=library, index=index).rstrip() + "\n"


def _line(value: str) -> str:
    """Return text for one line, without marks of code."""
    return inline(value).replace("`", "'")


def _json(value: Any) -> str:
    """Return JSON for a block of code, with nothing that ends the block."""
    return json.dumps(value, ensure_ascii=False).replace("```", "'''")


def _yaml(value: Any) -> str:
    """Return a value as JSON with nothing that opens HTML."""
    found = json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, list) else None)
    return found.replace("<", "\\u003c").replace("\n", "\n  ")


def _tables(record: Record) -> list[Table]:
    """Return the tables of a record, with primary accuracy by class where it is known."""
    found, names = [], ("before", "after")
    if record.kind == "audit":
        original = record.settings["original"]
        names = (original, leading(record) or original)
        found = [tables.worst_case_table(record), tables.audit_table(record)]
        found += [tables.transfer_table(record)] if record.figures["transfer"] else []
        found.append(tables.predictors_table(record))
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
        reached = None if case["broken"] else case["highest_accuracy"]
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
