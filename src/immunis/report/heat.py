"""Heat maps of a card: what each attack reaches on each model, or at each layer, as cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from immunis.core.records import Record
from immunis.core.shapes import CONTROL
from immunis.report.attacker_means import MEANS
from immunis.report.evidence import Evidence
from immunis.report.format import NOTED, defined, percent, points, unit
from immunis.report.query import called, gain, known, noted

STEPS = 10  # shades between the best constant answer and the original's best score


class Cell(NamedTuple):
    """A figure, its shade from 0 to 10 (None without one), what it means, and its interval."""

    text: str
    shade: int | None
    title: str
    small: str = ""


class Heat(NamedTuple):
    """Cells by group and row; ``title`` names the map."""

    title: str
    columns: list[str]
    groups: dict[str, dict[str, list[Cell]]]


def _cell(score: float, span: tuple[float, float], title: str) -> Cell:
    low, high = span
    if math.isnan(score):
        return Cell("–", None, title)
    share = (score - low) / (high - low) if high > low > -math.inf else 0.0
    shade = round(STEPS * min(max(share, 0.0), 1.0))
    return Cell(percent(score), shade, f"{title}: {percent(score)}%")


def _span(evidence: Evidence) -> tuple[float, float]:
    best = evidence.reached(evidence.original)
    return evidence.first.figures["chance"], best.score if best else math.nan


def by_model(evidence: Evidence) -> Heat:
    """Return what every attack reaches on the untrained control, and gains on every model."""
    span, names = _span(evidence), [CONTROL, *evidence.names[:-1]]

    def cell(attack: str, name: str) -> Cell:
        row = evidence.outcome(attack, name)
        if row is None or row["status"] == "done":
            score, notes = known(row["score"]["mean"]) if row else math.nan, noted(row)
            found = _cell(score, span, f"{attack} on {name}")
            title, bare = "; ".join([found.title, *notes]), evidence.outcome(attack, CONTROL)
            text, _, interval = points(gain(row, bare), evidence.kind).partition(" ")
            text = (found.text if name == CONTROL else text) + NOTED * bool(notes)
            return Cell(text, found.shade, title, "" if name == CONTROL else interval.strip("()"))
        text = "failed" if row["status"] == "failed" else "–"
        return Cell(text, None, f"{attack} on {name}: {row['status']} ({row['reason']})")

    groups: dict[str, dict[str, list[Cell]]] = {}
    for attack, means in evidence.attacks.items():
        groups.setdefault(MEANS[means], {})[attack] = [cell(attack, name) for name in names]
    columns = [f"{CONTROL} %", *(called(evidence.first, name) for name in names[1:])]
    title = f"What every attack gains over untrained features, in {unit(evidence.kind)}"
    return Heat(title, columns, groups)


def by_layer(evidence: Evidence) -> Heat | None:
    """Return what attacks on layers reach at each of them; None where no record says."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name in evidence.trio:
        for attack in evidence.attacks:
            row: Any = evidence.outcome(attack, name)
            if row and row["status"] == "done" and row.get("layers"):
                found.setdefault(attack, {})[name] = row["layers"]
    if not found:
        return None
    span = _span(evidence)
    layers = list(dict.fromkeys(at for of in found.values() for row in of.values() for at in row))
    groups = {}
    for attack, of in found.items():
        groups[attack] = {
            name: [
                _cell(known(row.get(at)), span, f"{attack} at layer {at} on {name}")
                for at in layers
            ]
            for name, row in of.items()
        }
    columns = [f"layer {at}" for at in layers]
    return Heat("Score of attacks by the layer they read, in percent", columns, groups)


def of_demo(record: Record) -> Heat:
    """Return RIR of every method of a demo, and what linear probes read after it."""
    f, steps = record.figures, [str(step) for step in record.settings["steps"]]
    reads = {name: row["harmful_accuracy"] for name, row in f["methods"].items()}
    rows = {
        n: [r["gradient_descent"][step] for step in steps] + [r["ridge"]] for n, r in reads.items()
    }
    scores = [score for row in rows.values() for score in row]
    span = min(scores, default=0.0), max(scores, default=1.0)
    columns = ["RIR", *(f"{step} steps" for step in steps), "closed form"]
    cells = {}
    for name, row in rows.items():
        shaded = [_cell(s, span, f"{at}, {name}") for at, s in zip(columns[1:], row, strict=True)]
        ratio = defined(f["methods"][name]["rir"]["value"])
        cells[name] = [Cell(ratio, None, f"RIR of {name}"), *shaded]
    title = "Harmful test accuracy of a linear probe, in percent, by its effort"
    return Heat(title, columns, {title: cells})
