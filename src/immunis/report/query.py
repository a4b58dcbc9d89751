"""Questions that tables, pages and figures ask of a record, answered in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from immunis.core.errors import InputError
from immunis.core.records import Record
from immunis.core.shapes import AuditFigures, ImmunizeFigures, Outcomes, Spectrum
from immunis.core.thinning import log_places

Cost = Literal["flops", "steps"]
ROLES: tuple[Literal["primary", "harmful"], ...] = ("primary", "harmful")
UNITS: dict[Cost, str] = {"flops": "operations", "steps": "steps"}  # what a cost is counted in
LARGE = 20  # from this many classes on, tables list only the ones that lose most


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


def called(record: Record, name: str) -> str:
    """Return a model's name, marked as broken where it no longer does its primary task."""
    return f"{name} (broken)" if record.figures["models"].get(name, {}).get("broken") else name


def scores(attacks: Outcomes, model: str) -> dict[str, float]:
    """Return the mean test score of every attack that ran on a model, by attack."""
    rows = {attack: by_model[model] for attack, by_model in attacks.items() if model in by_model}
    return {attack: row["score"]["mean"] for attack, row in rows.items() if row["status"] == "done"}


def leading(record: Record) -> str | None:
    """Return the defence of an audit whose worst attack keeps least (to a hundredth).

    Ties go to the one with the lowest mean score over attacks; broken models come last.
    """
    f: AuditFigures = record.figures

    def rank(name: str) -> tuple[bool, float, float]:
        kept = f["worst_case"][name]["residual_advantage"]
        found = scores(f["attacks"], name).values()
        mean = sum(found) / max(len(found), 1)
        return f["worst_case"][name]["broken"], math.inf if kept != kept else round(kept, 2), mean

    return min(defended(record), key=rank, default=None)


def telling_cost(record: Record) -> Cost:
    """Return the cost to draw: ``flops``, or ``steps`` where all attacks cost about as many flops.

    In a large network, computing the features takes nearly all operations of every probe.
    """
    f: AuditFigures = record.figures
    models = {name for rows in f["attacks"].values() for name in rows}
    spent = [cost for name in models for cost, _ in _points(f["attacks"], name, "flops")]
    return "flops" if spent and max(spent) > 10 * min(spent) else "steps"


def _points(attacks: Outcomes, model: str, cost: Cost) -> list[tuple[float, float]]:
    """Return cost and mean score at every point of all learning curves on a model."""
    rows = [by_model[model] for by_model in attacks.values() if model in by_model]
    points = [point for row in rows if row["status"] == "done" for point in row["curve"]]
    return [(max(point[cost], 1), point["mean"]) for point in points]


def envelope(record: Record, model: str, cost: Cost = "flops") -> list[tuple[float, float]]:
    """Return the best score that any attack reaches within a cost, as rising (cost, score).

    ``E(c) = max{score of a point of any attack's curve : its cost ≤ c}``. Computing the features
    counts as cost, searching for settings does not. Choosing the attack by its test score errs on
    the attacker's side.
    """
    found: list[tuple[float, float]] = []
    for spent, score in sorted(_points(record.figures["attacks"], model, cost)):
        if not found or score > found[-1][1]:
            if found and found[-1][0] == spent:
                found.pop()
            found.append((spent, score))
    return found


def cost_to(curve: Sequence[tuple[float, float]], score: float) -> float:
    """Return the cost at which an envelope first reaches a score, or ∞.

    >>> cost_to([(1.0, 0.2), (8.0, 0.9)], 0.5)
    8.0
    """
    return next((cost for cost, reached in curve if reached >= score), math.inf)


def outlines(record: Record) -> dict[str, dict[str, Outline]]:
    """Return spectra by role and model (or before and after); empty where a record has none."""
    f = record.figures
    if record.kind == "immunize":
        return {role: {w: _outline(s) for w, s in f["spectra"][role].items()} for role in ROLES}
    rows = f["methods"] if record.kind == "demo" else f["models"]
    kept = {name: row["spectra"] for name, row in rows.items() if "spectra" in row}
    return {role: {n: _outline(s[role]) for n, s in kept.items()} for role in ROLES if kept}


def _outline(spectrum: Spectrum, most: int = 64) -> Outline:
    values = spectrum["eigenvalues"]
    index = spectrum.get("index", range(1, len(values) + 1))
    pairs = [(i, v) for i, v in zip(index, values, strict=False) if i <= spectrum["rank"] and v > 0]
    if len(pairs) > most:
        pairs = [pairs[place - 1] for place in log_places(len(pairs), most)]
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


def telling_classes(before: Sequence[float], after: Sequence[float], most: int = 10) -> list[int]:
    """Return the classes to list, largest loss first: all of a few, else those that lose most.

    >>> telling_classes([0.9, 0.9, 0.9], [0.9, 0.5, 0.8])
    [1, 2, 0]
    """
    if len(before) < LARGE:
        most = len(before)
    loss = [0.0 if math.isnan(b - a) else b - a for b, a in zip(before, after, strict=True)]
    return sorted(range(len(loss)), key=lambda i: -loss[i])[:most]
