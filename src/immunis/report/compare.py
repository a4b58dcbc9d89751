"""Several records side by side: a column, or where they are many a row, for each model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from immunis.core.errors import InputError
from immunis.core.records import Record
from immunis.core.shapes import AuditFigures, ImmunizeFigures
from immunis.report.format import Table, number, percent
from immunis.report.query import ROLES, defended, require_kinds
from immunis.report.text import change, harmful_score

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


def compare(records: Sequence[Record]) -> tuple[Table, list[str]]:
    """Return a table of the models of several records, and notes on what else differs.

    Raises:
        InputError: for kinds of records that cannot be compared, or one record given twice.
    """
    require_kinds(records, ("audit", "immunize"), "cannot be compared with others")
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
    return Table("side by side", head, rows), _notes(records)


def _immunized(record: Record, place: int) -> list[str]:
    f: ImmunizeFigures = record.figures
    kappas = [f["spectra"][role]["after"]["condition_number"] for role in ROLES]
    cheap = [f["rir"]["value"], *kappas, f["rho"]["after"]]
    primary = _primary(record, f["primary_score"]["after"], f["primary_score"]["before"])
    head = f"{record.settings['method']} ({place})"
    return [head, "no attacker run", *["–"] * 4, primary, *map(number, cheap), "–"]


def _audited(record: Record, place: int, name: str) -> list[str]:
    f: AuditFigures = record.figures
    row, case = f["models"][name], f["worst_case"][name]
    share = case["residual_advantage"]
    kept = "cannot be ranked" if math.isnan(share) else f"{100 * share:.0f}%"
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
    differ = ", ".join(what for what, of in facts.items() if any(fact != of[0] for fact in of))
    notes = [f"These records differ in {differ}. Compare them with care."] if differ else []
    if audits and len(audits) < len(records):
        sample = "on the attacker's sample, immunize on the defender's own"
        notes.append(f"An audit measures RIR, κ and ρ {sample}.")
    return notes
