"""Several models side by side: a column, or where they are many a row, for each.

Audits of the same models are one: a model has the highest score of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from immunis.core.errors import InputError
from immunis.core.records import Record
from immunis.core.shapes import CONTROL, AuditFigures, ImmunizeFigures
from immunis.report.audit_tables import without_share
from immunis.report.evidence import Best, Evidence
from immunis.report.format import defined, number, points, share_cell, times, unit
from immunis.report.markup import Table
from immunis.report.query import (
    ROLES,
    broken,
    defended,
    definitions,
    known,
    require_kinds,
    untold,
    worst_share,
)
from immunis.report.runs import subjects
from immunis.report.tables import verdicts
from immunis.report.text import change, harmful_score

MOST_COLUMNS = 4
BUDGETS = ("budget", "probe_budget", "retraining_budget")
ROWS = [
    "",
    "highest score of any attack",
    "by",
    "on the original",
    "on an untrained copy",
    "most that an attack gains",
    "help an attack keeps",
    "cost (steps, ×)",
    "primary",
    "RIR",
    "Definition 3.1 (a), (b), (c)",
    "κ, primary",
    "κ, harmful",
    "ρ",
    "attacks, steps, seeds",
]


def compare(records: Sequence[Record]) -> tuple[Table, list[str]]:
    """Return a table of what several records are about, and notes on what else differs.

    Raises:
        InputError: for kinds of records that cannot be compared, or one record given twice.
    """
    require_kinds(records, ("audit", "immunize"), "cannot be compared with others")
    if len({record.digest() for record in records}) < len(records):
        raise InputError("the same record came twice; there is nothing to compare.")
    columns, found = [ROWS], subjects(records)
    for place, of in enumerate(found, 1):
        audits = tuple(record for record in of if record.kind == "audit")
        if audits:
            names = defended(audits[0]) or [audits[0].settings["original"]]
            columns += [_audited(Evidence(audits), place, name) for name in names]
        else:
            columns.append(_immunized(of[0], place))
    if len(columns) > MOST_COLUMNS + 1:
        head, *rows = columns
    else:
        head, *rows = map(list, zip(*columns, strict=True))
    table = Table("side by side", head, rows, without_share(rows))
    return table, _notes([of[0] for of in found])


def _immunized(record: Record, place: int) -> list[str]:
    f: ImmunizeFigures = record.figures
    kappas = [f["spectra"][role]["after"]["condition_number"] for role in ROLES]
    cheap = [*kappas, f["rho"]["after"]]
    primary = _primary(record, f["primary_score"]["after"], f["primary_score"]["before"])
    head = f"{record.settings['method']} ({place})"
    ratio = defined(f["rir"]["value"]), _definition(record, record.settings["method"])
    return [head, "no attacker run", *["–"] * 6, primary, *ratio, *map(number, cheap), "–"]


def _audited(evidence: Evidence, place: int, name: str) -> list[str]:
    record, kind = evidence.first, evidence.kind
    f: AuditFigures = record.figures
    row, lost = f["models"][name], broken(record, name)
    cases = [each.figures["worst_case"][name] for each in evidence.audits]
    gains = [case for case in cases if math.isfinite(known(case.get("gain")))]
    case = max(gains, key=lambda case: case["gain"], default=cases[0])
    gain = points(case.get("gain_interval") or {"mean": case.get("gain")}, kind)
    shares = [worst_share(case) for case in cases]
    told = [share for share in shares if not untold(share)]
    share = max(told, key=lambda share: share["mean"], default=shares[0])
    most = evidence.reached(name)
    others = (evidence.reached(other) for other in (evidence.original, CONTROL))
    settings = [each.settings for each in evidence.audits]
    ran = sum(evidence.done(attack, name) for attack in evidence.attacks)
    sizes = ran, max(each["budget"] for each in settings), min(each["seeds"] for each in settings)
    return [
        f"{name} ({place})",
        "broken, not immune" if lost else _score(record, most),
        most.attack if most else "–",
        *(_score(record, other) for other in others),
        "–" if lost else f"{gain} {unit(kind)}",
        "–" if lost else share_cell(share) if untold(share) else f"{100 * share['mean']:.0f}%",
        times((case.get("multiplier") or {}).get("steps")),
        _primary(record, row["primary"], f["models"][evidence.original]["primary"]),
        defined(row["rir"]),
        _definition(record, name),
        *map(number, (row["kappa_primary"], row["kappa_harmful"], row["rho"])),
        ", ".join(map(number, sizes)),
    ]


def _score(record: Record, found: Best | None) -> str:
    return harmful_score(record, found.score if found else math.nan)


def _definition(record: Record, name: str) -> str:
    found = definitions(record).get(name)
    return "; ".join(verdicts(found)) if found else "–"


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
        "budgets": [[s.get(key, s["budget"]) for key in BUDGETS] for s in settings],
        "settings that attacks search": [[s.get("search"), s.get("space", {})] for s in settings],
    }
    differ = ", ".join(what for what, of in facts.items() if any(fact != of[0] for fact in of))
    notes = [f"These records differ in {differ}. Compare them with care."] if differ else []
    if audits and len(audits) < len(records):
        notes.append(
            "An audit measures RIR, κ and ρ on the attacker's sample, immunize on the defender's "
            "own."
        )
    return notes
