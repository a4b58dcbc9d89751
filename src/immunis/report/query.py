"""Questions that tables, pages and figures ask of a record, answered in one place."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from immunis.core.errors import InputError
from immunis.core.records import Record, log_places
from immunis.core.shapes import (
    CONTROL,
    MANY_MODELS,
    SCRATCH,
    AuditFigures,
    Definition,
    ImmunizeFigures,
    Outcome,
    Outcomes,
    Share,
    Spectrum,
    Worst,
)

Cost = Literal["flops", "steps"]
ROLES: tuple[Literal["primary", "harmful"], ...] = ("primary", "harmful")
UNITS: dict[Cost, str] = {"flops": "operations", "steps": "steps"}  # what a cost is counted in
WIDEST = 1.0  # the widest interval of a share that is told: all of the original's help
LARGE, FEW = 20, 10  # from 20 classes on, tables list only the ten that lose most
POINTS = 64  # of a spectrum, at most
NO_HELP = "the original does not help by three standard errors"  # why there is no share
DIVERGED = "a score diverged"
NO_SPAN = "no interval is known"
WIDE = "the interval is wider than all of the original's help"
BY_MEANS = {  # families of attacks that leave the weights as they are, and that change them
    "all probes": ("probes", "surgery"),
    "fine-tuned": ("fine-tuning", "adaptive"),
}


class Reached(NamedTuple):
    """The highest score of any attack on a model, and that attack; NaN and None if none ran."""

    score: float
    attack: str | None


class Outline(NamedTuple):
    """A spectrum to draw: eigenvalues over the largest, at places that count from 1."""

    places: list[int]
    values: list[float]
    rank: int
    dimension: int
    condition_number: float


def require_kinds(records: Sequence[Record], kinds: Sequence[str], lacks: str) -> None:
    """Raise ``InputError`` for no record, or for one of another kind."""
    if not records:
        raise InputError("no record came; expected at least one.")
    for record in records:
        if record.kind not in kinds:
            known = ", ".join(kinds)
            raise InputError(f"a record of kind {record.kind!r} {lacks}; expected one of {known}.")


def defended(record: Record) -> list[str]:
    """Return the models of an audit other than the original."""
    return [name for name in record.figures["models"] if name != record.settings["original"]]


def broken(record: Record, name: str) -> bool:
    """Return True if an audited model lost its primary task, by the rule of ``immunize``.

    Its score fell by more than ``most_lost``; earlier records hold the answer alone.
    """
    rows = record.figures["models"]
    row, original = (rows.get(each, {}) for each in (name, record.settings["original"]))
    fell = known(original.get("primary")) - known(row.get("primary"))
    return bool(row.get("broken")) or fell > known(row.get("most_lost"))


def defences(record: Record) -> list[str]:
    """Return the defences of an audit: not the original, nor the training without a defence."""
    return [name for name in defended(record) if name != record.settings.get("plain")]


def called(record: Record, name: str) -> str:
    """Return a model's name, marked if it lost its primary task."""
    return f"{name} (broken)" if broken(record, name) else name


def known(value: float | None) -> float:
    """Return a figure that a record may not define as a number, NaN where it does not."""
    return math.nan if value is None else value


def share(row: Outcome | None) -> Share | None:
    """Return the share of the original's help that an attack keeps; None if that is unknown."""
    found = row.get("residual_advantage") if row and row["status"] == "done" else None
    return found if found and not untold(found) else None


def gain(row: Outcome | None, bare: Outcome | None) -> Mapping[str, Any] | None:
    """Return what an attack gains over the same one on untrained features (``bare``), if known.

    Earlier records hold no interval of it.
    """
    if row is None or row["status"] != "done" or bare is None or bare["status"] != "done":
        return None
    gap = row["score"]["mean"] - bare["score"]["mean"]
    return row.get("above_untrained", {"mean": gap})


def unseen(record: Record) -> bool:
    """Return True if an audit tells attacks that some defence trains or stops against apart."""
    return bool(record.settings.get("anticipated"))


def ranks(record: Record) -> bool:
    """Return True if an audit has enough models to rank them by their cheap figures."""
    f: AuditFigures = record.figures
    return f["predictors"] is not None and len(f["models"]) >= MANY_MODELS


def scores(attacks: Outcomes, model: str) -> dict[str, float]:
    """Return the mean test score of every attack that ran on a model, by attack."""
    rows = {attack: by_model[model] for attack, by_model in attacks.items() if model in by_model}
    return {attack: row["score"]["mean"] for attack, row in rows.items() if row["status"] == "done"}


def depths(record: Record, model: str) -> dict[str, float]:
    """Return the best score that attacks read at each stage of a model, and by ``BY_MEANS``.

    Stages come in their order; there are none if no attack on this model tells them apart.
    """
    attacks, families = record.figures["attacks"], record.settings.get("families", {})
    rows = [of[model] for of in attacks.values() if of.get(model, {}).get("status") == "done"]
    layered = [row["layers"] for row in rows if row.get("layers")]
    stages: Mapping[str, float] = max(layered, key=len, default={})
    found = {at: max(row[at] for row in layered if at in row) for at in stages}
    every = scores(attacks, model)
    for label, of in BY_MEANS.items():
        reached = [score for attack, score in every.items() if families.get(attack) in of]
        found |= {label: max(reached)} if found and reached else {}
    return found


def notes(attacks: Outcomes) -> list[str]:
    """Return every doubt that attacks note about themselves, with the attacks and models."""
    found: dict[str, dict[str, list[str]]] = {}
    for attack, by_model in attacks.items():
        for model, row in by_model.items():
            for note in noted(row):
                doubt, detail = _divided(note)
                where = f"{model} ({detail})" if detail else model
                found.setdefault(doubt, {}).setdefault(attack, []).append(where)
    places = {
        doubt: (f"{a} on {', '.join(of)}" for a, of in by.items()) for doubt, by in found.items()
    }
    return [f"{doubt}: {'; '.join(of)}" for doubt, of in places.items()]


def _divided(note: str) -> tuple[str, str]:
    """Return what a note says, and the detail that differs from run to run; "" if it has none.

    >>> _divided("still rising when the budget ended, in 7 of 15 runs")
    ('still rising when the budget ended', '7 of 15 runs')
    >>> _divided("rate 1 is at the edge of those tried")
    ('the best value is at the edge of those tried', 'rate 1')
    """
    if found := re.fullmatch(r"(.+), in (\d+ of \d+ runs)", note):
        return found[1], found[2]
    if found := re.fullmatch(r"(.+) (is at the edge of those tried)", note):
        return f"the best value {found[2]}", found[1]
    return note, ""


def doubts(record: Record) -> list[str]:
    """Return what the attacks of an audit note, and training from scratch."""
    f: AuditFigures = record.figures
    return notes({**f["attacks"], SCRATCH: {CONTROL: f["controls"][SCRATCH]}})


def noted(row: Outcome | None) -> list[str]:
    """Return what an attack notes of its runs on a model, as that a score was still rising."""
    return row.get("notes", []) if row and row["status"] == "done" else []


def reached(record: Record, model: str) -> Reached:
    """Return the highest mean test score that any attack reaches on a model or control.

    Scores that are not known are left out.
    """
    every = scores(record.figures["attacks"], model)
    found = {attack: score for attack, score in every.items() if not math.isnan(score)}
    best = max(found, key=lambda attack: found[attack], default=None)
    return Reached(math.nan if best is None else found[best], best)


def untold(found: Mapping[str, Any] | None) -> str:
    """Return why there is not enough evidence on a share of the help; "" if there is.

    >>> untold({"mean": 1.49, "low": 0.0, "high": math.inf})
    "the interval is wider than all of the original's help"
    >>> untold({"mean": 0.4, "low": 0.2, "high": 0.6})
    ''
    """
    if found is None or math.isnan(known(found["mean"])):
        return DIVERGED if found and found.get("reason") == "diverged" else NO_HELP
    ends = [known(found[end]) for end in ("low", "high") if end in found]
    if any(map(math.isnan, ends)):
        return NO_SPAN
    wide = math.isinf(found["mean"]) or (ends and not ends[1] - ends[0] <= WIDEST)
    return WIDE if wide else ""


def worst_share(case: Worst) -> dict[str, Any]:
    """Return the largest share that an attack keeps of the original's help, with its interval."""
    return {**(case.get("interval") or {}), "mean": case["residual_advantage"]}


def leading(*records: Record) -> str | None:
    """Return the defence of audits of the same models whose best attack scores lowest.

    Scores count to a tenth of a point. Ties go to the one with the lowest mean score over attacks;
    broken models come last.
    """

    def rank(name: str) -> tuple[bool, float, float]:
        found = [s for record in records for s in scores(record.figures["attacks"], name).values()]
        highest = round(max(found), 3) if found else math.inf
        return broken(records[0], name), highest, sum(found) / max(len(found), 1)

    return min(defences(records[0]), key=rank, default=None)


def telling_cost(*records: Record) -> Cost:
    """Return the cost to draw: ``flops``, or ``steps`` where all attacks cost about as many flops.

    In a large network, computing the features takes nearly all operations of every probe.
    """
    every = [record.figures["attacks"] for record in records]
    models = {name for attacks in every for rows in attacks.values() for name in rows}
    curves = (curve for of in every for name in models for curve in _curves(of, name, "flops"))
    spent = [cost for curve in curves for cost, _ in curve]
    return "flops" if spent and max(spent) > 10 * min(spent) else "steps"


def _curves(attacks: Outcomes, model: str, cost: Cost) -> list[list[tuple[float, float]]]:
    """Return the learning curve of every attack on a model, as (cost, mean score)."""
    rows = [by_model[model] for by_model in attacks.values() if model in by_model]
    done = (row["curve"] for row in rows if row["status"] == "done")
    return [[(max(point[cost], 1), point["mean"]) for point in curve] for curve in done]


def envelope(model: str, cost: Cost, *records: Record) -> list[tuple[float, float]]:
    """Return the best score of any attack that stops at a cost, as (cost, score) where it changes.

    ``E(c) = max over attacks of the score at the last point of its curve with cost ≤ c``. A curve
    is that of an attacker who keeps the weights that validated best, so test scores choose the
    attack and no point of its curve: E may fall, and its end is the highest score of any attack.
    Computing the features counts as cost, searching for settings does not.
    """
    curves = [c for record in records for c in _curves(record.figures["attacks"], model, cost)]
    found: list[tuple[float, float]] = []
    for place in sorted({spent for curve in curves for spent, _ in curve}):
        known = ([score for spent, score in curve if spent <= place] for curve in curves)
        best = max(scores[-1] for scores in known if scores)
        if not found or best != found[-1][1]:
            found.append((place, best))
    return found


def spent(model: str, cost: Cost, *records: Record) -> float:
    """Return the largest cost of any point of any attack on a model; 0 where none ran."""
    every = (c for record in records for c in _curves(record.figures["attacks"], model, cost))
    return max((cost for curve in every for cost, _ in curve), default=0.0)


def cost_to(curve: Sequence[tuple[float, float]], score: float) -> float:
    """Return the cost at which an envelope first reaches a score, or ∞.

    >>> cost_to([(1.0, 0.2), (8.0, 0.9)], 0.5)
    8.0
    """
    return next((cost for cost, reached in curve if reached >= score), math.inf)


def definitions(record: Record) -> dict[str, Definition]:
    """Return the verdicts on Definition 3.1 by model; empty where a record has none."""
    f = record.figures
    if record.kind in ("immunize", "measure"):
        name = record.settings.get("method", "the best linear map")
        return {name: f["definition"]} if "definition" in f else {}
    rows = f["methods"] if record.kind == "demo" else {n: f["models"][n] for n in defended(record)}
    return {name: row["definition"] for name, row in rows.items() if "definition" in row}


def outlines(record: Record) -> dict[str, dict[str, Outline]]:
    """Return spectra by role and model (or before and after); empty where a record has none."""
    f = record.figures
    if record.kind == "immunize":
        return {role: {w: _outline(s) for w, s in f["spectra"][role].items()} for role in ROLES}
    if record.kind == "measure":
        return {role: {"features": _outline(f[role])} for role in ROLES}
    rows = f["methods"] if record.kind == "demo" else f["models"]
    kept = {name: row["spectra"] for name, row in rows.items() if "spectra" in row}
    return {role: {n: _outline(s[role]) for n, s in kept.items()} for role in ROLES if kept}


def _outline(spectrum: Spectrum) -> Outline:
    values = spectrum["eigenvalues"]
    index = spectrum.get("index", range(1, len(values) + 1))
    pairs = [(i, v) for i, v in zip(index, values, strict=False) if i <= spectrum["rank"] and v > 0]
    if len(pairs) > POINTS:
        pairs = [pairs[place - 1] for place in log_places(len(pairs), POINTS)]
    values = [v / pairs[0][1] for _, v in pairs]
    sizes = spectrum["rank"], spectrum["dimension"], spectrum["condition_number"]
    return Outline([i for i, _ in pairs], values, *sizes)


def per_class(record: Record) -> tuple[list[str], dict[str, list[float]]]:
    """Return the primary classes, and each model's accuracy on them; empty where not recorded."""
    if record.kind == "immunize":
        f: ImmunizeFigures = record.figures
        found = f.get("per_class")
        if found is None or not (found["before"] and found["after"]):
            return [], {}
        return found["classes"], {"before": found["before"], "after": found["after"]}
    rows = record.figures["models"].items()
    return record.figures["classes"], {n: row["per_class"] for n, row in rows if "per_class" in row}


def telling_classes(before: Sequence[float], after: Sequence[float]) -> list[int]:
    """Return the classes to list, largest loss first: all of a few, else those that lose most.

    >>> telling_classes([0.9, 0.9, 0.9], [0.9, 0.5, 0.8])
    [1, 2, 0]
    """
    loss = [0.0 if math.isnan(b - a) else b - a for b, a in zip(before, after, strict=True)]
    return sorted(range(len(loss)), key=lambda i: -loss[i])[: None if len(loss) < LARGE else FEW]
