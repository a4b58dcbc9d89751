"""Records as a Hugging Face model card: README.md with YAML metadata, and the facts of the page.

No license is written: that is the owner's to choose.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from immunis.core.errors import InputError
from immunis.core.records import Record
from immunis.core.version import __version__
from immunis.models.rebuild import shown
from immunis.report.format import Table, inline, number
from immunis.report.query import complete, defended, leading, per_class
from immunis.report.tables import (
    audit_table,
    class_table,
    foretold_table,
    immunize_table,
    transfer_table,
    worst_case_table,
)
from immunis.report.text import COLUMNS, ceiling, headline, not_tested, threat_model, unlike

KINDS = ("immunize", "audit")
TASKS = {"timm": "image-classification", "transformers": "text-classification"}


def model_card(*records: Record, library: str | None = None) -> str:
    """Return the model card of what was done to a model, and of how it was audited.

    ``library`` is what the model is built by, ``timm`` or ``transformers``; the recipe's if left
    out.

    Raises:
        InputError: for no record, or one of a kind that speaks of no model.
    """
    if not records:
        raise InputError("no record came; a model card needs at least one.")
    for record in records:
        if record.kind not in KINDS:
            raise InputError(
                f"a record of kind {record.kind!r} has no model card; {' and '.join(KINDS)} have "
                "one. For a page, write to a file that ends in .html."
            )
    with complete("model card"):
        return _text(records, library or _library(records[0]))


def _text(records: Sequence[Record], library: str) -> str:
    metadata = {
        "library_name": library,
        "tags": ["immunis", "model-immunization"],
        "model-index": [entry for record in records for entry in _index(record, library)],
    }
    lines = [
        "---",
        "# license: yours to choose; none is set here",
        *(f"{key}: {_yaml(value)}" for key, value in metadata.items()),
        "---",
        "",
        f"# {_line(records[0].name)}",
    ]
    for place, record in enumerate(records):
        lines += ["", f"# {_line(record.name)}"] if place else []
        lines += ["", f"**{_line(headline(record))}**", ""]
        lines += _audited(record) if record.kind == "audit" else _immunized(record)
        lines += [*_classes(record), "", "## Not tested, or known to break it", ""]
        lines += [f"- {_line(line)}" for line in not_tested(record)]
        lines += ["", "## How to make it again", "", *_provenance(record)]
    return "\n".join([*lines, ""])


def _line(text: str) -> str:
    """Text for one line, without marks of code."""
    return inline(text).replace("`", "'")


def _yaml(value: Any) -> str:
    """A value as JSON, which YAML is a superset of, with nothing that opens HTML."""
    text = json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, list) else None)
    return text.replace("<", "\\u003c").replace("\n", "\n  ")


def _immunized(record: Record) -> list[str]:
    ratio = record.figures["rir"]["value"]
    return [
        "## What was done, and what it changed",
        "",
        f"Immunized with `{_line(str(record.settings['method']))}`, seed {record.seed}.",
        "",
        immunize_table(record).markdown(),
        "",
        f"RIR = {number(ratio)} against the given model.{unlike(record)} {ceiling(record)} κ, ρ "
        "and RIR are measured on the defender's own data; they do not say what an attacker pays.",
    ]


def _audited(record: Record) -> list[str]:
    tables = [worst_case_table(record), audit_table(record)]
    tables += [transfer_table(record)] if record.figures["transfer"] else []
    tables.append(foretold_table(record))
    parts = [part for table in tables for part in ("", _heading(table), "", table.markdown())]
    return [threat_model(record), *parts, "", COLUMNS, "", ceiling(record)]


def _classes(record: Record) -> list[str]:
    """Primary accuracy by class, where the record holds it."""
    names = ("before", "after")
    if record.kind == "audit":
        original = record.settings["original"]
        names = (original, leading(record) or original)
    if not set(names) <= per_class(record)[1].keys():
        return []
    table = class_table(record, *names)
    return ["", _heading(table), "", table.markdown()]


def _heading(table: Table) -> str:
    return f"## {_line(table.title[:1].upper() + table.title[1:])}"


def _provenance(record: Record) -> list[str]:
    recipe = record.settings.get("recipe")
    version = record.versions.get("immunis", __version__)
    command = f"`immunis {record.kind} recipe.toml`"
    said = [
        f"{command if recipe else f'By `immunis.{record.kind}` in Python,'} with immunis "
        f"{_line(version)}, torch "
        f"{_line(record.versions.get('torch', 'unknown'))}, seed {record.seed}; commit "
        f"{_line(record.commit or 'of an installed package')}; record {record.digest()[:16]}.",
        "",
        *(
            f"- {_line(role)} data: {_line(task['name'])}, train {task['train']}, test "
            f"{task['test'] or 'none'}"
            for role, task in record.data.items()
        ),
    ]
    if recipe is not None and (seen := shown(recipe.get("data", {}))):
        said += [
            f"- images: shorter side resized to {seen['input_size'][1]} pixels (bicubic), centre "
            f"kept; less mean {seen['mean']}, over deviation {seen['std']}"
        ]
    if recipe is not None:
        text = json.dumps(recipe, ensure_ascii=False).replace("```", "'''")
        said += ["", "The recipe, as JSON:", "", "```json", text, "```"]
    return said


def _library(record: Record) -> str:
    model = record.settings.get("recipe", {}).get("model", {})
    return next((name for name in TASKS if name in model), "pytorch")


def _index(record: Record, library: str) -> list[dict[str, Any]]:
    """The model-index: test scores only, of the primary task and of the most an attack reads."""
    f, data = record.figures, record.data
    kind = TASKS["timm"] if library == "timm" else TASKS.get(_library(record), "other")
    if record.kind == "immunize":
        tested = f["primary_score"]["split"] == "test"
        score = f["primary_score"]["after"] if tested else None
        return _entry(kind, record.name, [(data["primary"], "primary task", score)])
    found = []
    for name in defended(record):
        case = f["worst_case"][name]
        highest = f"{case['highest_attack']}, the highest score of {case['attacks']} attacks"
        attack = f"harmful task, {highest} (lower is safer)"
        scores = [
            (data["primary"], "primary task", f["models"][name]["primary"]),
            (data["attacker"], attack, None if case["broken"] else case["highest_accuracy"]),
        ]
        found += _entry(kind, name, scores)
    return found


def _entry(
    kind: str, name: str, scores: list[tuple[Any, str, float | None]]
) -> list[dict[str, Any]]:
    results = [
        {
            "task": {"type": kind},
            "dataset": {"name": task["name"], "type": task["name"]},
            "metrics": [{"type": _metric(task), "value": round(score, 4), "name": what}],
        }
        for task, what, score in scores
        if score is not None and math.isfinite(score)
    ]
    return [{"name": name, "results": results}] if results else []


def _metric(task: Any) -> str:
    return "accuracy" if task["kind"] == "classification" else "r_squared"
