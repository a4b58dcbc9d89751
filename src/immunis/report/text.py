"""What a record says, in sentences: the same words on the page and in the model card."""

from __future__ import annotations

import math
from collections import Counter

from immunis.core.controls import SCRATCH
from immunis.core.records import Record
from immunis.core.shapes import AuditFigures, ImmunizeFigures, Outcome
from immunis.report.format import number, percent
from immunis.report.query import ROLES, defended, leading

BREAKS = 0.5  # share of the original's help from which an attack is said to break a defence
COLUMNS = (
    "keeps: share of the original model's help that the attacker keeps in the worst attack (95% "
    "interval over seeds); gain: points of score above the same attack on untrained features; "
    "cost x: steps to 90% of what the original allows, as a multiple of the original's; best on "
    "best: the share when each model meets its own best attack; not ranked: attacks that failed, "
    "do not apply, or gain less than a point from the original; (from scratch): the untrained "
    "copy, fine-tuned."
)
KNOWN = [
    "Re-initialising or dropping the changed layers, or reading features below them, undoes a "
    "defence of the last layers.",
    "No known defence stops fine-tuning of the whole model with enough data.",
]


def harmful_score(record: Record, value: float) -> str:
    """Return a score of the attacker's task with its unit."""
    classes = record.data["attacker"]["kind"] == "classification"
    return f"{percent(value)}%" if classes else f"R² {number(value)}"


def change(record: Record, after: float | None, before: float | None) -> str:
    """Return a primary score and how it changed: in points of accuracy, or in R²."""
    classes = record.data["primary"]["kind"] == "classification"
    name = "primary accuracy" if classes else "primary R²"
    if after is None or before is None or not math.isfinite(after - before):
        return f"{name} not measured"
    if classes:
        return f"{name} {_signed(100 * (after - before), 1)} points ({percent(after)}%)"
    return f"{name} {_signed(after - before, 3)} ({number(after)})"


def _signed(value: float, digits: int) -> str:
    """Return a number with its sign, ± for zero.

    >>> _signed(-0.04, 1), _signed(-0.06, 1), _signed(2, 1)
    ('±0.0', '−0.1', '+2.0')
    """
    text = f"{abs(value):.{digits}f}"
    return ("±" if not float(text) else "−" if value < 0 else "+") + text


def verdict(record: Record, name: str, called: str = "") -> str:
    """Return one audited model in one sentence, with its threat model."""
    called = called or name
    f: AuditFigures = record.figures
    case, original = f["worst_case"][name], record.settings["original"]
    cost = change(record, f["models"][name]["primary"], f["models"][original]["primary"])
    if case["broken"]:
        return f"{called} no longer does its primary task ({cost}): it is broken, not immune."
    if case["attack"] is None:
        return f"{called}: no attack could be run; {cost}."
    budget = number(record.settings["budget"])
    tried = f"the best of {case['attacks']} attacks within {budget} steps"
    reached = f"{case['attack']}, {harmful_score(record, case['accuracy'])}"
    if case["highest_attack"] != case["attack"]:
        most = harmful_score(record, case["highest_accuracy"])
        cost = f"the highest score of any attack is {most} ({case['highest_attack']}); {cost}"
    share = case["residual_advantage"]
    if math.isnan(share):
        return (
            f"{called}: {tried} is {reached}; the original helps no attack more than an untrained "
            f"copy does, so attacks cannot be ranked; {cost}."
        )
    known = [f"{100 * share:.0f}%"] if share > 1.005 else []
    span = case.get("interval")
    if span and span["low"] < span["high"]:
        known.append(f"interval {100 * span['low']:.0f}% to {100 * span['high']:.0f}%")
    kept = "all" if share > 1.005 else f"{100 * share:.0f}%"
    kept += " of the original model's help" + f" ({'; '.join(known)})" * bool(known)
    if 2 * case["undefined"] > case["attacks"]:
        helped = case["attacks"] - case["undefined"]
        kept += f"; the original helps only {helped} of these attacks by a point or more"
    return f"{called}: {tried} ({reached}) keeps {kept}; {cost}."


def headline(record: Record) -> str:
    """Return the record in one sentence."""
    if record.kind == "audit":
        lead, count = leading(record), len(defended(record))
        if lead is None:
            return verdict(record, record.settings["original"])
        return verdict(record, lead, f"{lead}, the best of {count} defences" if count > 1 else "")
    if record.kind == "immunize":
        f: ImmunizeFigures = record.figures
        score, rho = f["primary_score"], f["rho"]
        return (
            "No attacker has been run against this model; immunis audit measures what an attack "
            f"costs. {record.settings['method']}: the share ρ of the harmful labels that a linear "
            f"probe explains, on the defender's own sample, goes from {number(rho['before'])} to "
            f"{number(rho['after'])}; {change(record, score['after'], score['before'])} on "
            f"{score['split']} data."
        )
    demo = record.figures
    steps = str(max(record.settings["steps"]))
    reads = {name: row["harmful_accuracy"] for name, row in demo["methods"].items()}
    best = min(reads, key=lambda name: reads[name]["gradient_descent"][steps])
    shown = (reads[name]["gradient_descent"][steps] for name in ("no defence", "frontier", best))
    bare, ceiled, least = map(percent, shown)
    return (
        f"A high ratio did not stop the attacker: after {steps} steps a probe reaches {bare}% "
        f"without a defence, {ceiled}% where the ratio is at its ceiling (RIR* = "
        f"{number(demo['ceiling'])}), and {least}% under the best defence ({best}; a "
        f"closed-form probe reaches {percent(reads[best]['ridge'])}% there)."
    )


def threat_model(record: Record) -> str:
    """Return who attacks an audited model, and with what."""
    count = record.data["attacker"]["train"].rpartition("-")[2]
    samples = f"{int(count):,} labelled samples" if count.isdecimal() and len(count) < 12 else ""
    checked = "" if record.figures["disjoint"]["checked"] else "not checked to be "
    seeds = record.settings["seeds"]
    return (
        f"The attacker has the weights and {samples or 'labelled samples'} of their own "
        f"({checked}disjoint from the defender's), and chooses settings on a fifth of them. Every "
        f"attack runs with {seeds} seed{'s' * (seeds > 1)}. Help is the score that the original's "
        "features add to that of an untrained copy."
    )


def rank_change(record: Record) -> str:
    """Return a warning where an ``immunize`` record's ranks changed, else nothing."""
    f: ImmunizeFigures = record.figures
    said = []
    for role in ROLES:
        before, after = f["spectra"][role]["before"]["rank"], f["spectra"][role]["after"]["rank"]
        if before != after:
            said.append(f"the rank of the {role} features went from {before} to {after}")
    if not said:
        return ""
    return (
        f" Note that {' and '.join(said)}: condition numbers before and after describe different "
        "subspaces, so RIR compares unlike things."
    )


def ratio(record: Record) -> str:
    """Return RIR of an ``immunize`` record in words, with its ceilings where they are known."""
    f: ImmunizeFigures = record.figures
    inputs, value = f["rir_against_inputs"], number(f["rir"]["value"])
    if f["ceiling"] is None or inputs is None:
        return f"RIR = {value} against the given model.{rank_change(record)}"
    return (
        f"RIR = {value} against the given extractor, of at most {number(f['ceiling'])}; "
        f"{number(inputs['value'])} against the inputs, of at most "
        f"{number(f['ceiling_against_inputs'])}.{rank_change(record)}"
    )


def predicted(record: Record) -> str:
    """Return how the cheap figures of an audit rank with what attackers reach and pay."""
    f: AuditFigures = record.figures
    names = {"kappa_harmful": "κ_H", "rir": "RIR", "rho": "ρ"}
    rows = [
        (names.get(n, n), number(r["score"]), number(r["cost"])) for n, r in f["predictors"].items()
    ]
    return "; ".join(f"{name} {score} with score, {cost} with cost" for name, score, cost in rows)


def table_notes(record: Record) -> str:
    """Return what an audit's tables leave out: columns, controls, rank correlations."""
    f: AuditFigures = record.figures
    scratch = f["controls"][SCRATCH]
    reached = f"{percent(scratch['score']['mean'])}%" if scratch["status"] == "done" else "failed"
    unchecked = " Not checked: whether the attacker's data is disjoint from the defender's."
    return (
        f"{COLUMNS} Chance: {percent(f['chance'])}%; trained from scratch: {reached}. Rank "
        f"correlation: {predicted(record)}.{unchecked * (not f['disjoint']['checked'])}"
    )


def ceiling(record: Record) -> str:
    """Return what bounds the ratio, or why nothing does."""
    if record.kind == "immunize":
        if record.figures["ceiling"] is None:
            return (
                "There is no ceiling for a trained network: RIR* bounds what a linear map of "
                "fixed features can reach, and training changes the features."
            )
        most = number(record.figures["ceiling"])
        return f"No linear map of the given features exceeds RIR* = {most}."
    found = record.figures["models"][record.settings["original"]].get("ceiling")
    if found is None:
        return "This record holds no ceiling."
    return (
        f"RIR* = {number(found)} bounds every defence that is a linear map of the original's "
        "features. No bound is known for a defence that trains the network."
    )


def not_tested(record: Record) -> list[str]:
    """Return what a record does not show, and what is known to break the defence."""
    if record.kind == "demo":
        return [
            "Attackers other than two linear probes; fine-tuning; an attacker who knows θ.",
            "Networks, and data other than these digits.",
        ]
    if record.kind == "immunize":
        return [
            "No attacker was run; an audit measures what an attack costs.",
            "Condition numbers describe one attacker only: gradient descent on a linear probe. "
            "Ridge regression and whitening undo conditioning where the attacker has more samples "
            "than features.",
            "ρ was measured on the defender's own harmful sample. Another sample of the same task "
            "may show a higher ρ.",
            *(f"The training reports: {n}" for n in record.figures["details"].get("notes", [])),
            *KNOWN,
        ]
    found = [line for name in defended(record) for line in _told(record, name)]
    not_run = record.settings.get("not_run", {}).items()
    found += [f"Not run: {attack} ({summary})." for attack, summary in not_run]
    more = f"More than {number(record.settings['budget'])} steps, more samples than the attacker"
    return [*found, f"{more} had here, another harmful task, attacks published later.", *KNOWN]


def _told(record: Record, name: str) -> list[str]:
    """Return what an audit knows against one defence."""
    f: AuditFigures = record.figures
    runs = f.get("training", {}).get(name, [])
    notes = Counter(note for run in runs if run is not None for note in run["notes"])
    said = [f"{n} of {len(runs)} trainings of {name} report: {note}" for note, n in notes.items()]
    rows: dict[str, Outcome] = {a: of[name] for a, of in f["attacks"].items() if name in of}
    kept = {
        attack: row["residual_advantage"]["mean"]
        for attack, row in rows.items()
        if row["status"] == "done" and "residual_advantage" in row
    }
    broken = sorted((a for a in kept if kept[a] >= BREAKS), key=lambda a: -kept[a])
    if broken:
        listed = ", ".join(f"{attack} keeps {100 * kept[attack]:.0f}%" for attack in broken)
        said.append(f"Tested, and breaks {name}: {listed} of the original's help.")
    for status, why in (("failed", "failed"), ("not applicable", "do not apply")):
        some = ", ".join(attack for attack, row in rows.items() if row["status"] == status)
        if some:
            said.append(f"Not ranked on {name}, because they {why}: {some}.")
    return said
