"""What a record says, in sentences: the same words on the page and in the model card."""

from __future__ import annotations

import math
from collections import Counter

from immunis.core.controls import SCRATCH
from immunis.core.records import Record
from immunis.report.format import number, percent
from immunis.report.query import defended, leading

BREAKS = 0.5  # share of the original's help from which an attack is named as breaking a defence


def measure_of(record: Record) -> str:
    """How the primary task is scored."""
    return "accuracy" if record.data["primary"]["kind"] == "classification" else "R²"


def harmful_score(record: Record, value: float) -> str:
    """A score of the attacker's task, as people write it."""
    known = record.data["attacker"]["kind"] == "classification"
    return f"{percent(value)}%" if known else f"R² {number(value)}"


def change(record: Record, after: float | None, before: float | None) -> str:
    """A primary score and how it changed: in points of accuracy, or in R²."""
    name = f"primary {measure_of(record)}"
    if not all(isinstance(v, int | float) and math.isfinite(v) for v in (after, before)):
        return f"{name} not measured"
    assert after is not None
    assert before is not None
    if measure_of(record) == "R²":
        return f"{name} {_signed(after - before, 3)} ({number(after)})"
    return f"{name} {_signed(100 * (after - before), 1)} points ({percent(after)}%)"


def _signed(value: float, digits: int) -> str:
    """A number with its sign, none for zero.

    >>> _signed(-0.04, 1), _signed(-0.06, 1), _signed(2, 1)
    ('±0.0', '−0.1', '+2.0')
    """
    text = f"{abs(value):.{digits}f}"
    sign = "±" if not float(text) else "−" if value < 0 else "+"
    return sign + text


def verdict(record: Record, name: str, called: str = "") -> str:
    """One audited model in one sentence, with its threat model."""
    called = called or name
    f, case = record.figures, record.figures["worst_case"][name]
    budget = number(record.settings["budget"])
    tried = f"the best of {case['attacks']} attacks within {budget} steps"
    cost = change(
        record, f["models"][name]["primary"], f["models"][record.settings["original"]]["primary"]
    )
    if case["broken"]:
        return f"{called} no longer does its primary task ({cost}): it is broken, not immune."
    if case["attack"] is None:
        return f"{called}: no attack could be run; {cost}."
    reached = f"{case['attack']}, {harmful_score(record, case['accuracy'])}"
    highest = ""
    if case["highest_attack"] != case["attack"]:
        most = harmful_score(record, case["highest_accuracy"])
        highest = f"the most that any reaches is {most} ({case['highest_attack']}); "
    if math.isnan(case["residual_advantage"]):
        return (
            f"{called}: {tried} is {reached}; the original helps no attack over an untrained copy, "
            f"so nothing could be ranked; {highest}{cost}."
        )
    share = case["residual_advantage"]
    low, high = (100 * case["interval"][end] for end in ("low", "high"))
    between = f"interval {low:.0f}% to {high:.0f}%" if low < high else ""
    kept = f"{100 * share:.0f}% of the original model's help" + f" ({between})" * bool(between)
    if share > 1.005:
        inside = "; ".join(filter(None, [f"{100 * share:.0f}%", between]))
        kept = f"all of the original model's help ({inside})"
    if 2 * case["undefined"] > case["attacks"]:
        helped = case["attacks"] - case["undefined"]
        kept += f", which is over a point in {helped} of them alone"
    return f"{called}: {tried} ({reached}) keeps {kept}; {highest}{cost}."


def headline(record: Record) -> str:
    """The record in one sentence."""
    f = record.figures
    if record.kind == "audit":
        lead, count = leading(record), len(defended(record))
        if lead is None:
            return verdict(record, record.settings["original"])
        if count > 1:
            return verdict(record, lead, f"{lead}, the best of {count} defences")
        return verdict(record, lead)
    if record.kind == "immunize":
        score, rho = f["primary_score"], f["rho"]
        text = change(record, score["after"], score["before"])
        explained = f"{number(rho['before'])} to {number(rho['after'])}"
        return (
            "No attacker has been run against this model; an audit (immunis audit) says what one "
            f"pays. {record.settings['method']}: what a linear probe explains of the harmful "
            f"labels, in the defender's own sample, goes from ρ = {explained}; {text} on "
            f"{score['split']} data."
        )
    methods, steps = f["methods"], str(max(record.settings["steps"]))
    best = min(methods, key=lambda n: methods[n]["harmful_accuracy"]["gradient_descent"][steps])
    reads = {
        n: percent(methods[n]["harmful_accuracy"]["gradient_descent"][steps])
        for n in ("no defence", "frontier", best)
    }
    return (
        f"A high ratio did not stop the attacker: after {steps} steps a probe reads "
        f"{reads['no defence']}% without defence, {reads['frontier']}% where the ratio is at its "
        f"ceiling (RIR* = {number(f['ceiling'])}), and {reads[best]}% at the least ({best}, "
        f"where a closed-form probe reads {percent(methods[best]['harmful_accuracy']['ridge'])}%)."
    )


def threat_model(record: Record) -> str:
    """Who attacks an audited model, with what."""
    count = str(record.data["attacker"]["train"]).rpartition("-")[2]
    samples = f"{int(count):,} labelled samples" if count.isdecimal() else "labelled samples"
    if record.figures["disjoint"]["checked"]:
        apart = "disjoint from the defender's"
    else:
        apart = "not checked to be disjoint from the defender's"
    repeats = record.settings["seeds"]
    return (
        f"The attacker holds the weights and {samples} of their own "
        f"({apart}), and chooses settings on a fifth of them; {repeats} "
        f"repeat{'s' * (repeats > 1)}. Help is what the original's features give over those of an "
        "untrained copy."
    )


COLUMNS = (
    "keeps: share of the original model's help, over untrained features, that the attacker keeps "
    "in the worst attack (95% interval over seeds); gain: its points over the same attack on "
    "untrained features; cost x: steps to 90% of what the original allows, against the original; "
    "best on best: the share when each model meets its best attack; not ranked: attacks that "
    "failed, do not apply, or on which the original helps less than a point; (from scratch): "
    "fine-tuning the untrained copy."
)


def unlike(record: Record) -> str:
    """What to know of κ and RIR of an ``immunize`` record where ranks changed; else nothing."""
    said = []
    for role in ("primary", "harmful"):
        before, after = (record.figures["spectra"][role][k]["rank"] for k in ("before", "after"))
        if before != after:
            said.append(f"the rank of the {role} features went from {before} to {after}")
    if not said:
        return ""
    return (
        f" Mind that {' and '.join(said)}: condition numbers before and after are of different "
        "subspaces, and RIR compares unlike things."
    )


def ratio(record: Record) -> str:
    """RIR of an ``immunize`` record in words, with the ceilings where there are any."""
    f = record.figures
    if f["ceiling"] is None:
        return f"RIR = {number(f['rir']['value'])} against the given network.{unlike(record)}"
    return (
        f"RIR = {number(f['rir']['value'])} against the given extractor, of at most "
        f"{number(f['ceiling'])}; against the inputs themselves "
        f"{number(f['rir_against_inputs']['value'])}, of at most "
        f"{number(f['ceiling_against_inputs'])}.{unlike(record)}"
    )


def beside_tables(record: Record) -> str:
    """What an audit's tables leave out: their columns, controls, what κ and ρ foretold."""
    f = record.figures
    scratch = f["controls"][SCRATCH]
    reached = percent(scratch["score"]["mean"]) if scratch["status"] == "done" else "failed"
    foretold = "; ".join(
        f"{name} {number(row['score'])} with score, {number(row['cost'])} with cost"
        for name, row in f["predictors"].items()
    )
    unchecked = " Not checked: whether the attacker's data is disjoint from the defender's."
    return (
        f"{COLUMNS} Chance: {percent(f['chance'])}%; trained from scratch: {reached}%. "
        f"Rank correlation: {foretold}." + unchecked * (not f["disjoint"]["checked"])
    )


def ceiling(record: Record) -> str:
    """What bounds the ratio, or why nothing does."""
    f = record.figures
    if record.kind == "immunize":
        if f["ceiling"] is None:
            return (
                "There is no ceiling for a network that was trained: RIR* bounds what a linear map "
                "of fixed features can reach, and training changes the features themselves."
            )
        return f"No linear map of the given features passes RIR* = {number(f['ceiling'])}."
    found = f["models"][record.settings["original"]].get("ceiling")
    if found is None:
        return "This record holds no ceiling."
    return (
        f"RIR* = {number(found)} bounds every defence that is a linear map of the original's "
        "features; one that trained the network may pass it, and is bounded by nothing known."
    )


def not_tested(record: Record) -> list[str]:
    """What a record does not show, and what is known to break the defence."""
    if record.kind == "demo":
        return [
            "Other attackers than two linear probes; fine-tuning; an attacker who knows θ.",
            "Networks, and data unlike these digits.",
        ]
    f, settings = record.figures, record.settings
    known = [
        "Re-initialising or dropping the layers that were changed, and reading below them, undoes "
        "a defence of the last layers.",
        "Fine-tuning the whole model with enough data is stopped by nothing known.",
    ]
    if record.kind == "immunize":
        return [
            "This record ran no attacker: an audit says what one pays.",
            "Condition numbers describe one attacker only, gradient descent on a linear probe; "
            "ridge regression and whitening undo conditioning where the attacker has more samples "
            "than features.",
            "ρ was measured on the defender's own harmful sample; another sample of the same task "
            "may reveal more.",
            *(f"Told by the training: {note}" for note in f["details"].get("notes", [])),
            *known,
        ]
    found = []
    for name in defended(record):
        runs = f.get("training", {}).get(name, [])
        told = Counter(note for run in runs if run is not None for note in run["notes"])
        found += [f"Told by {n} of {len(runs)} trainings of {name}: {t}" for t, n in told.items()]
        rows = {attack: models.get(name, {}) for attack, models in f["attacks"].items()}
        kept = {a: row.get("residual_advantage", {}).get("mean", 0) for a, row in rows.items()}
        broken = sorted((a for a in kept if kept[a] >= BREAKS), key=lambda a: -kept[a])
        if broken:
            listed = ", ".join(f"{a} keeps {100 * kept[a]:.0f}%" for a in broken)
            found.append(f"Tested, and breaks {name}: {listed} of the original's help.")
        for status in ("failed", "not applicable"):
            some = [a for a, row in rows.items() if row.get("status") == status]
            if some:
                found.append(f"Counted for nothing on {name}, {status}: {', '.join(some)}.")
    found += [f"Not run: {a} ({summary})." for a, summary in settings.get("not_run", {}).items()]
    more = f"More than {number(settings['budget'])} steps, more samples than the attacker had here"
    return [*found, f"{more}, another harmful task, attacks published later.", *known]
