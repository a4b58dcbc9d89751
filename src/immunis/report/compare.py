"""Several records side by side: a column, or where they are many a row, for each model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from immunis.core.errors import InputError
from immunis.core.records import Record
from immunis.core.shapes import AuditFigures, ImmunizeFigures
from immunis.report.format import Table, number, percent
from immunis.report.query import defended
from immunis.report.text import change, harmful_score

KINDS = ("audit", "immunize")
MOST_COLUMNS = 4
ROWS = [
    "",
    "help the worst attack keeps",
    "worst attack",
    "it reaches",
    "above untrained features",
    "it pays (steps, ×)",
    "primary",
    "RIR",
    "κ, primary",
    "κ, harmful",
    "ρ",
    "attacks, steps, seeds",
]


class Comparison(NamedTuple):
    """A table of models, and notes on what else differs."""

    table: Table
    notes: list[str]


def compare(records: Sequence[Record]) -> Comparison:
    """Put the models of several records beside each other.

    Raises:
        InputError: for kinds of records that cannot be compared, or one record given twice.
    """
    for record in records:
        if record.kind not in KINDS:
            raise InputError(
                f"a record of kind {record.kind!r} cannot be compared with others; "
                f"{' and '.join(KINDS)} can. Make a card of it alone."
            )
    if len({record.digest() for record in records}) < len(records):
        raise InputError("the same record came twice; there is nothing to compare.")
    columns = [ROWS]
    for place, record in enumerate(records, 1):
        if record.kind == "immunize":
            columns.append(_immunized(record, place))
        else:
            names = defended(record) or [record.settings["original"]]
            columns += [_audited(record, place, name) for name in names]
    if len(columns) > MOST_COLUMNS + 1:
        head, *rows = columns
    else:
        head, *rows = map(list, zip(*columns, strict=True))
    return Comparison(Table("side by side", head, rows), _notes(records))


def _immunized(record: Record, place: int) -> list[str]:
    f: ImmunizeFigures = record.figures
    score, spectra = f["primary_score"], f["spectra"]
    cheap = [
        f["rir"]["value"],
        spectra["primary"]["after"]["condition_number"],
        spectra["harmful"]["after"]["condition_number"],
        f["rho"]["after"],
    ]
    primary = _primary(record, score["after"], score["before"])
    head = f"{record.settings['method']} ({place})"
    return [head, "no attacker run", *["–"] * 4, primary, *map(number, cheap), "–"]


def _audited(record: Record, place: int, name: str) -> list[str]:
    f: AuditFigures = record.figures
    row, case = f["models"][name], f["worst_case"][name]
    kept = f"{100 * case['residual_advantage']:.0f}%"
    if math.isnan(case["residual_advantage"]):
        kept = "cannot be ranked"
    return [
        f"{name} ({place})",
        "broken, not immune" if case["broken"] else kept,
        case["attack"] or "–",
        harmful_score(record, case["accuracy"]),
        f"{percent(case.get('gain', math.nan))} points",
        number((case.get("multiplier") or {}).get("steps")),
        _primary(record, row["primary"], f["models"][record.settings["original"]]["primary"]),
        *map(number, (row["rir"], row["kappa_primary"], row["kappa_harmful"], row["rho"])),
        f"{case['attacks']}, {number(record.settings['budget'])}, {record.settings['seeds']}",
    ]


def _primary(record: Record, after: float | None, before: float | None) -> str:
    return change(record, after, before).removeprefix("primary ").removeprefix("accuracy ")


def _notes(records: Sequence[Record]) -> list[str]:
    """Return what differs between the records besides their models."""
    audits = [record for record in records if record.kind == "audit"]
    settings = [record.settings for record in audits]
    facts = {
        "primary data": [[r.data["primary"]["train"], r.data["primary"]["test"]] for r in records],
        "the attacker's data": [record.data["attacker"]["train"] for record in audits],
        "attacks": [sorted(s["attacks"]) for s in settings],
        "budgets": [s["budget"] for s in settings],
        "settings that attacks search": [[s.get("search"), s.get("space", {})] for s in settings],
    }
    differ = [what for what, of in facts.items() if any(fact != of[0] for fact in of)]
    notes = []
    if differ:
        notes.append(f"These records differ in {', '.join(differ)}. Compare them with care.")
    if audits and len(audits) < len(records):
        notes.append(
            "An audit measures RIR, κ and ρ on the attacker's sample, immunize on the defender's "
            "own."
        )
    return notes
