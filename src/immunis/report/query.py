"""What pages, figures and model cards show of a record, picked out of it in one place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from immunis.core.errors import InputError
from immunis.core.records import Record
from immunis.core.thinning import log_places

ROLES = ("primary", "harmful")
UNITS = {"flops": "operations", "steps": "steps"}  # what a cost is counted in
LARGE = 20  # from this many classes on, only the most telling are listed


class Outline(NamedTuple):
    """A spectrum to draw: places from 1, eigenvalues over the largest, rank, dimension, κ."""

    places: list[int]
    values: list[float]
    rank: int
    dimension: int
    condition_number: float


@contextmanager
def complete(what: str) -> Iterator[None]:
    """Say in words that a record lacks what is to be made of it."""
    try:
        yield
    except InputError:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, ArithmeticError) as error:
        raise InputError(
            f"a record lacks what its {what} shows ({error}): it was changed by hand, or written "
            "by another version of immunis. Run it again."
        ) from error


def defended(record: Record) -> list[str]:
    """Models of an audit other than the original."""
    return [name for name in record.figures["models"] if name != record.settings["original"]]


def leading(record: Record) -> str | None:
    """The defence of an audit whose worst attack keeps least (to a hundredth).

    Ties go to the one on which attacks reach least in the mean; broken ones come last.
    """
    cases, attacks = record.figures["worst_case"], record.figures["attacks"].values()

    def rank(name: str) -> tuple[bool, float, float]:
        kept = cases[name]["residual_advantage"]
        scores = [rows[name]["score"]["mean"] for rows in attacks if "score" in rows.get(name, {})]
        mean = sum(scores) / max(len(scores), 1)
        return cases[name]["broken"], math.inf if math.isnan(kept) else round(kept, 2), mean

    return min(defended(record), key=rank, default=None)


def telling_cost(record: Record) -> str:
    """What to draw cost in: operations; steps where reading the features dwarfs all else.

    In a large network that is nearly all that a probe costs, so operations hardly differ.
    """
    spent = [
        point["flops"]
        for rows in record.figures["attacks"].values()
        for row in rows.values()
        for point in row.get("curve", ())
    ]
    return "flops" if spent and max(spent) > 10 * min(spent) else "steps"


def envelope(record: Record, model: str, cost: str = "flops") -> list[tuple[float, float]]:
    """Best score that any attack reaches on a model within a cost: (cost, score), rising.

    ``E(c) = max{score of a point of any attack's curve : its cost ≤ c}``, in operations or in
    steps, of which a closed form takes one. Reading the features counts; searching for settings
    does not. Choosing the attack by its test score errs on the attacker's side.
    """
    points = sorted(
        (max(point[cost], 1), point["mean"])
        for rows in record.figures["attacks"].values()
        for point in rows.get(model, {}).get("curve", ())
    )
    found: list[tuple[float, float]] = []
    for spent, score in points:
        if not found or score > found[-1][1]:
            if found and found[-1][0] == spent:
                found.pop()
            found.append((spent, score))
    return found


def cost_to(curve: Sequence[tuple[float, float]], score: float) -> float:
    """Cost at which an envelope first reaches a score; ∞ where it never does.

    >>> cost_to([(1.0, 0.2), (8.0, 0.9)], 0.5)
    8.0
    """
    return next((cost for cost, reached in curve if reached >= score), math.inf)


def outlines(record: Record) -> dict[str, dict[str, Outline]]:
    """Spectra by role and model (or before and after); empty where a record holds none."""
    f = record.figures
    if record.kind == "immunize":
        return {
            role: {when: _outline(s) for when, s in f["spectra"][role].items()} for role in ROLES
        }
    rows = f["methods"] if record.kind == "demo" else f["models"]
    kept = {name: row["spectra"] for name, row in rows.items() if "spectra" in row}
    return {role: {n: _outline(s[role]) for n, s in kept.items()} for role in ROLES if kept}


def _outline(spectrum: Mapping[str, Any], most: int = 64) -> Outline:
    rank = spectrum["rank"]
    values = list(spectrum["eigenvalues"])
    index = list(spectrum.get("index", range(1, len(values) + 1)))
    pairs = [(i, v) for i, v in zip(index, values, strict=True) if i <= rank and v > 0]
    if len(pairs) > most:
        pairs = [pairs[place - 1] for place in log_places(len(pairs), most)]
    return Outline(
        [i for i, _ in pairs],
        [v / pairs[0][1] for _, v in pairs],
        rank,
        spectrum["dimension"],
        spectrum["condition_number"],
    )


def per_class(record: Record) -> tuple[list[str], dict[str, list[float]]]:
    """Names of the primary classes, and each model's accuracy on them; empty where not kept."""
    f = record.figures
    if record.kind == "immunize":
        found = dict(f.get("per_class", {"classes": []}))
        names = found.pop("classes")
        return names, {when: scores for when, scores in found.items() if scores}
    scores = {name: row["per_class"] for name, row in f["models"].items() if "per_class" in row}
    return list(f.get("classes", ())), scores


def telling_classes(before: Sequence[float], after: Sequence[float], most: int = 10) -> list[int]:
    """Classes to list, largest loss first: all where there are few, else the hardest hit.

    >>> telling_classes([0.9, 0.9, 0.9], [0.9, 0.5, 0.8])
    [1, 2, 0]
    """
    if len(before) < LARGE:
        most = len(before)
    loss = [0.0 if math.isnan(b - a) else b - a for b, a in zip(before, after, strict=True)]
    return sorted(range(len(loss)), key=lambda i: -loss[i])[:most]
