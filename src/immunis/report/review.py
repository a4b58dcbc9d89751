"""What a reviewing body asks of a released model: the records' answers, and the owner's."""

from __future__ import annotations

import math
from typing import Any

from immunis.core.records import Record
from immunis.report.about import UNKNOWN, About
from immunis.report.evidence import Evidence
from immunis.report.format import amount, number, percent, points, unit
from immunis.report.text import command, harmful_score

SPEED = 1e14  # operations a second of one accelerator, for the estimate of hours
Answers = list[tuple[str, str]]


def review(about: About, record: Record, evidence: Evidence | None = None) -> Answers:
    """Return questions and answers, about a model and, where it was audited, its attackers."""
    model = evidence.model if evidence else None
    found = [
        ("Model", about.model or model or record.name),
        ("Base model", about.base_model or _base(record)),
        ("Weights (hash)", about.weights or _weights(record, model)),
        ("Licence", about.licence),
        ("Harmful tasks", about.harmful_tasks or _harmful(record)),
        ("Who chose them", about.chosen_by),
    ]
    if evidence is not None:
        found += _attacker(evidence)
        found += [
            ("Threshold", _threshold(evidence)),
            ("Threshold fixed in advance", _fixed(evidence)),
            (
                "Primary score it may lose",
                amount(evidence.tolerance, record.data["primary"]["kind"]),
            ),
            ("Benign fine-tuning", about.fine_tunability or _benign(evidence)),
        ]
    else:
        found.append(("Benign fine-tuning", about.fine_tunability))
    found += [
        ("Unseen harmful classes", about.unseen_classes),
        ("Uplift over an open model", _uplift(about, evidence)),
        ("Known breaks", "; ".join(about.known_breaks)),
        ("To reproduce", about.reproduce or _command(record)),
    ]
    if evidence is not None:
        counts = [r.figures["final"]["audits"] for r in evidence.audits if "final" in r.figures]
        none = "none; development rows only"
        found.append(("Final audits", number(max(counts)) if counts else none))
    found += [("Contact", about.contact), ("Audited again when", about.reaudit)]
    return [(name, value or UNKNOWN) for name, value in found]


def _base(record: Record) -> str:
    """Return the model that a recipe names."""
    given = record.settings.get("recipe", {}).get("model", {})
    return ", ".join(f"{key} {value}" for key, value in given.items())


def _weights(record: Record, model: str | None) -> str:
    """Return the hash of the model's weights; of several trainings all of them."""
    row = record.figures["models"][model] if model else record.figures
    hashes = (each.get("weights") for each in row.get("variants", [row]))
    return ", ".join(str(each) for each in dict.fromkeys(hashes) if each)


def _harmful(record: Record) -> str:
    role = "attacker" if "attacker" in record.data else "harmful"
    return str(record.data[role]["name"])


def _attacker(evidence: Evidence) -> Answers:
    """Return what one attacker had and spent on the judged model, at most."""
    rows: list[Any] = [evidence.outcome(attack, evidence.model) for attack in evidence.attacks]
    every = [float(row.get("search_flops", math.nan)) for row in rows if row and "curve" in row]
    known = [flops for flops in every if math.isfinite(flops)]
    sizes = {r.data["attacker"]["train"].rpartition("-")[2] for r in evidence.audits}
    data = ", ".join(f"{int(n):,}" for n in sorted(sizes) if n.isdecimal() and len(n) < 12)
    settings = [record.settings for record in evidence.audits]
    totals = [s["tuning_total"] for s in settings if s.get("tuning_total")]
    runs = [s[key] for s in settings for key in ("budget", "probe_budget") if s.get(key)]
    steps = f"{number(max(runs, default=0))} at most in a run"
    steps += f", {number(max(totals))} in all runs of a search" if totals else ""
    spent = hours = ""
    if known:
        spent = f"{number(max(known))} for the dearest attack, {number(sum(known))} for all"
        told = f"{_hours(max(known))} for the dearest, {_hours(sum(known))} for all"
        hours = f"{told}, at {number(SPEED)} operations a second"
    return [
        ("Attacker's data", f"{data} labelled rows" if data else ""),
        ("Attacker's steps", steps),
        ("Attacker's operations", spent),
        ("GPU hours (estimate)", hours),
    ]


def _hours(flops: float) -> str:
    """Return how long one accelerator takes for some operations.

    >>> _hours(6e8), _hours(1e18)
    ('under a second', '2.78')
    """
    return "under a second" if flops < SPEED else number(flops / SPEED / 3600)


def _threshold(evidence: Evidence) -> str:
    limit = evidence.limit
    if math.isnan(limit):
        return "none: the original helps no attacker by more than the noise of these runs"
    return f"{harmful_score(evidence.first, limit)}, {evidence.origin}"


def _fixed(evidence: Evidence) -> str:
    if evidence.stated is None:
        return "the default of this program"
    if evidence.in_time:
        return "yes: the audit was given it, and its record holds it"
    day = evidence.about.threshold_fixed
    claim = f", though the owner says that it was fixed on {day}" if day else ""
    return f"no: the audit was not given it{claim}"


def _benign(evidence: Evidence) -> str:
    """Return what harmless tasks still learn, the original's score first."""
    found = []
    for record in evidence.audits:
        for task, attacks in record.figures["transfer"].items():
            best = []
            for name in (evidence.original, evidence.model):
                rows = [of[name] for of in attacks.values() if name in of]
                done = [row["score"]["mean"] for row in rows if row["status"] == "done"]
                best.append(f"{percent(max(done))}%" if done else "–")
            found.append(f"{task}: {' → '.join(best)}")
    return "; ".join(found)


def _uplift(about: About, evidence: Evidence | None) -> str:
    best = evidence.reached(evidence.model) if evidence else None
    if about.open_score is None or best is None or evidence is None:
        return about.open_model
    name, score = about.open_model or "an open model", harmful_score(evidence.first, best.score)
    other = harmful_score(evidence.first, about.open_score)
    gap = points({"mean": best.score - about.open_score}, evidence.kind)
    return f"{gap} {unit(evidence.kind)}: best attack {score}, on {name} {other}"


def _command(record: Record) -> str:
    said = command(record)
    commit = f" and commit {record.commit[:12]}" if record.commit else ""
    return said and f"{said} (with this run's record{commit})"
