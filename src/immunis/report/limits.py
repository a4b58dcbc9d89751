"""What a record does not show, and what is known to break a defence."""

from __future__ import annotations

from collections import Counter

from immunis.core.records import Record
from immunis.core.shapes import AuditFigures, Outcome
from immunis.report.format import NOTED, steps_of
from immunis.report.query import defended, doubts, known, scores
from immunis.report.text import harmful_score

MANY = 5  # attacks that were not run, from which on they are listed by name alone
BREAKS = 0.5  # share of the original's help from which an attack is said to break a defence
KNOWN = [
    "Re-initialising or dropping the changed layers, or reading features below them, undoes a "
    "defence of the last layers.",
    "No known defence stops fine-tuning of the whole model with enough data.",
]


def not_tested(record: Record, audited: bool = False) -> list[str]:
    """Return what a record does not show, and what is known to break the defence.

    ``audited``: an audit stands beside it, which says what attackers reach.
    """
    if record.kind == "demo":
        return [
            "Attackers other than two linear probes; fine-tuning; an attacker who knows θ.",
            "Networks, and data other than these digits.",
        ]
    if record.kind == "immunize":
        return [
            *([] if audited else ["No attacker was run; an audit measures what an attack costs."]),
            "Condition numbers describe one attacker only: gradient descent on a linear probe. "
            "Ridge regression and whitening undo conditioning where the attacker has more samples "
            "than features.",
            "ρ was measured on the defender's own harmful sample. Another sample of the same task "
            "may show a higher ρ.",
            *(f"The training reports: {n}" for n in record.figures["details"].get("notes", [])),
            *KNOWN,
        ]
    varied = record.figures.get("factors", {"models": {}})["models"].items()
    reasons = dict.fromkeys(of["claim"] for _, of in varied if of["claim"])
    found = [
        f"{', '.join(name for name, of in varied if of['claim'] == reason)}: {reason}."
        for reason in reasons
    ]
    found += [line for name in defended(record) for line in _told(record, name)]
    found += [f"{NOTED} Noted of attacks: {line}." for line in doubts(record)]
    not_run = record.settings.get("not_run", {}).items()
    if len(not_run) > MANY:
        found.append(f"Not run: {', '.join(attack for attack, _ in not_run)}.")
    else:
        found += [f"Not run: {attack} ({summary})." for attack, summary in not_run]
    more = f"More than {steps_of(record)}, more samples than the attacker"
    return [*found, f"{more} had here, another harmful task, attacks published later.", *KNOWN]


def _breaks(row: Outcome) -> bool:
    """Return True if an attack keeps half of the original's help, as far as can be seen."""
    found = row.get("residual_advantage") if row["status"] == "done" else None
    return bool(found) and known(found["mean"]) >= BREAKS  # type: ignore[index]


def _told(record: Record, name: str) -> list[str]:
    """Return what an audit knows against one defence."""
    f: AuditFigures = record.figures
    runs = f.get("training", {}).get(name, [])
    counts = Counter(note for run in runs if run is not None for note in run["notes"])
    said = [f"{n} of {len(runs)} trainings of {name} report: {note}" for note, n in counts.items()]
    rows: dict[str, Outcome] = {a: of[name] for a, of in f["attacks"].items() if name in of}
    scored, others = (scores(f["attacks"], model) for model in (name, record.settings["original"]))
    broken = sorted((a for a in scored if _breaks(rows[a])), key=lambda a: -scored[a])
    if broken:
        listed = ", ".join(
            f"{a} reaches {harmful_score(record, scored[a])} ({harmful_score(record, others[a])})"
            for a in broken
        )
        said.append(f"Tested, and breaks {name} (on the original): {listed}.")
    for status, why in (("failed", "failed"), ("not applicable", "do not apply")):
        some = ", ".join(attack for attack, row in rows.items() if row["status"] == status)
        if some:
            said.append(f"Not ranked on {name}, because they {why}: {some}.")
    return said
