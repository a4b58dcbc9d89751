"""Several records side by side: a column, or where they are many a row, for each model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from immunis.core.errors import InputError
from immunis.core.records import Record
from immunis.report.format import Table, number, percent
from immunis.report.query import defended
from immunis.report.text import change, harmful_score

KINDS = ("audit", "immunize")
MOST_COLUMNS = 4


class Comparison(NamedTuple):
    """A table of models, and notes on what differs besides them."""

    table: Table
    notes: list[str]


def compare(records: Sequence[Record]) -> Comparison:
    """Put the models of several records beside each other.

    Raises:
        InputError: for kinds of records that say different things, or one record given twice.
    """
    for record in records:
        if record.kind not in KINDS:
            raise InputError(
                f"a record of kind {record.kind!r} cannot be compared with others; "
                f"{' and '.join(KINDS)} can. Make a card of it alone."
            )
    digests = [record.digest() for record in records]
    if len(set(digests)) < len(digests):
        raise InputError("the same record came twice; there is nothing to compare.")
    columns = [
        (place, record, name) for place, record in enumerate(records, 1) for name in _models(record)
    ]
    heads = [f"{name} ({place})" for place, _, name in columns]
    rows = [[what, *(cell(r, name) for _, r, name in columns)] for what, cell in ROWS.items()]
    if len(columns) > MOST_COLUMNS:  # a row each reads better then
        head, *rows = map(list, zip(["", *heads], *rows, strict=True))
        return Comparison(Table("side by side", head, rows), _notes(records))
    return Comparison(Table("side by side", ["", *heads], rows), _notes(records))


def _models(record: Record) -> list[str]:
    if record.kind == "immunize":
        return [str(record.settings["method"])]
    return defended(record) or [record.settings["original"]]


def _audited(read: Callable[[Record, str, Any, Any], str], otherwise: str = "–") -> Any:
    """A cell of an audit, read from the record, the model's row and its worst case."""

    def cell(record: Record, name: str) -> str:
        if record.kind != "audit":
            return otherwise
        f = record.figures
        return read(record, name, f["models"][name], f["worst_case"][name])

    return cell


def _verdict(record: Record, name: str, row: Any, case: Any) -> str:
    if case["broken"]:
        return "broken, not immune"
    kept = case["residual_advantage"]
    return "cannot be ranked" if math.isnan(kept) else f"{100 * kept:.0f}%"


def _primary(record: Record, name: str) -> str:
    f = record.figures
    if record.kind == "immunize":
        before, after = f["primary_score"]["before"], f["primary_score"]["after"]
    else:
        before = f["models"][record.settings["original"]]["primary"]
        after = f["models"][name]["primary"]
    return change(record, after, before).removeprefix("primary ").removeprefix("accuracy ")


def _cheap(in_audit: str, in_immunize: Callable[[Any], Any]) -> Callable[[Record, str], str]:
    def cell(record: Record, name: str) -> str:
        f = record.figures
        found = in_immunize(f) if record.kind == "immunize" else f["models"][name][in_audit]
        return number(found)

    return cell


def _kappa(role: str) -> Callable[[Record, str], str]:
    return _cheap(f"kappa_{role}", lambda f: f["spectra"][role]["after"]["condition_number"])


ROWS: dict[str, Callable[[Record, str], str]] = {
    "help the worst attack keeps": _audited(_verdict, "no attacker run"),
    "worst attack": _audited(lambda record, name, row, case: case["attack"] or "–"),
    "it reaches": _audited(lambda record, name, row, case: harmful_score(record, case["accuracy"])),
    "over untrained features": _audited(
        lambda record, name, row, case: f"{percent(case.get('gain', math.nan))} points"
    ),
    "it pays (steps, ×)": _audited(
        lambda record, name, row, case: number((case.get("multiplier") or {}).get("steps"))
    ),
    "primary": _primary,
    "RIR": _cheap("rir", lambda f: f["rir"]["value"]),
    "κ, primary": _kappa("primary"),
    "κ, harmful": _kappa("harmful"),
    "ρ": _cheap("rho", lambda f: f["rho"]["after"]),
    "attacks, steps, repeats": _audited(
        lambda record, name, row, case: (
            f"{case['attacks']}, {number(record.settings['budget'])}, {record.settings['seeds']}"
        )
    ),
}


def _notes(records: Sequence[Record]) -> list[str]:
    """What differs between the records besides their models."""
    audits = [record for record in records if record.kind == "audit"]
    checks: dict[str, tuple[Sequence[Record], Callable[[Record], Any]]] = {
        "primary data": (records, lambda r: [r.data["primary"][k] for k in ("train", "test")]),
        "the attacker's data": (audits, lambda r: r.data["attacker"]["train"]),
        "attacks": (audits, lambda r: sorted(r.settings["attacks"])),
        "budgets": (audits, lambda r: r.settings["budget"]),
        "settings that attacks search": (
            audits, lambda r: [r.settings.get("search"), r.settings.get("space", {})],
        ),
    }  # fmt: skip
    differ = [
        what
        for what, (of, key) in checks.items()
        if of and any(key(record) != key(of[0]) for record in of)
    ]
    notes = []
    if differ:
        notes.append(f"Not alike in these records: {', '.join(differ)}. Read across with care.")
    if audits and len(audits) < len(records):
        notes.append(
            "RIR, κ and ρ of an audit are on the attacker's sample, those of immunize on the "
            "defender's own."
        )
    return notes
