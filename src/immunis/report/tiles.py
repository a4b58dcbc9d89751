"""The four tiles at the top of a card: each a figure or three, with what it means."""

from __future__ import annotations

import math
from typing import NamedTuple

from immunis.core.records import Record
from immunis.core.shapes import CONTROL, ImmunizeFigures
from immunis.report.evidence import Best, Evidence
from immunis.report.format import RAISED, number, percent, signed, unit
from immunis.report.query import known
from immunis.report.text import harmful_score

UNTESTED = "not measured"


class Tile(NamedTuple):
    """A label, figures with their captions, and a note."""

    label: str
    figures: list[tuple[str, str]]
    note: str


def audit_tiles(evidence: Evidence) -> list[Tile]:
    """Return the tiles of an audited model."""
    return [_primary(evidence), _highest(evidence), _cost(evidence), _attacks(evidence)]


def immunize_tiles(record: Record) -> list[Tile]:
    """Return the tiles of a model that nobody has attacked yet."""
    f: ImmunizeFigures = record.figures
    score, rho = f["primary_score"], f["rho"]
    before, after = known(score["before"]), known(score["after"])
    kind = record.data["primary"]["kind"]
    moved = [(number(rho["before"]), "before"), (number(rho["after"]), "after")]
    return [
        Tile(
            "Primary score",
            [(_moved(after - before, kind), "")],
            f"{_told(before, kind)} → {_told(after, kind)}, {score['split']} data",
        ),
        Tile("Harmful labels a linear probe explains, ρ", moved, "on the defender's own sample"),
        Tile("Price of an attack", [(UNTESTED, "")], "immunis audit measures it"),
        Tile("Attacks run", [("0", "")], "no attacker has been run"),
    ]


def _count(value: float) -> str:
    """Return a number of steps or operations: powers of ten as people write them.

    >>> _count(6.23e12), _count(250.0)
    ('6.2·10¹²', '250')
    """
    first, _, power = number(value).partition("e")
    return f"{first}·10{power.translate(RAISED)}" if power else first


def _moved(change: float, kind: str) -> str:
    factor, digits = (100, 1) if kind == "classification" else (1, 3)
    if not math.isfinite(change):
        return UNTESTED
    return f"{signed(factor * change, digits)} {unit(kind)}"


def _told(value: float, kind: str) -> str:
    return f"{percent(value)}%" if kind == "classification" else f"R² {number(value)}"


def _primary(evidence: Evidence) -> Tile:
    """Return how the primary score changed, with its interval where one is known."""
    rows, kind = evidence.first.figures["models"], evidence.first.data["primary"]["kind"]
    before, after = (known(rows[n]["primary"]) for n in (evidence.original, evidence.model))
    if evidence.model == evidence.original:
        return Tile("Primary score", [(_told(before, kind), "")], "no defence to compare with")
    change = rows[evidence.model].get("primary_change", {}).get(evidence.original)
    note = f"{_told(before, kind)} → {_told(after, kind)}"
    if change is not None and math.isfinite(known(change["low"]) + known(change["high"])):
        factor, digits = (100, 1) if kind == "classification" else (1, 3)
        low, high = (signed(factor * change[end], digits) for end in ("low", "high"))
        note += f"; 95%: {low} to {high}"
    elif math.isfinite(after - before):
        note += "; no interval is recorded"
    return Tile("Primary score", [(_moved(after - before, kind), "")], note)


def _highest(evidence: Evidence) -> Tile:
    """Return the best attacker's score on the original, the model and the untrained control."""
    captions = {evidence.original: "original", CONTROL: "untrained"}
    found: dict[str, Best | None] = {n: evidence.reached(n) for n in evidence.trio}
    figures = [
        (_told(each.score if each else math.nan, evidence.kind), captions.get(name, "defended"))
        for name, each in found.items()
    ]
    mine = found[evidence.model]
    if mine is None:
        return Tile("Best attacker's score", figures, "no attack could be run")
    note = mine.attack
    if math.isfinite(mine.low + mine.high):
        top = min(mine.high, 1.0)  # no score passes it
        ends = (harmful_score(evidence.first, end) for end in (mine.low, top))
        note += f"; 95%: {' to '.join(ends)}"
    return Tile("Best attacker's score", figures, note)


def _cost(evidence: Evidence) -> Tile:
    """Return how many times as much the attacker pays for 90% of what the original allows."""
    cost, label = evidence.cost, "Price of 90% of the original"
    if not math.isfinite(cost.original) or evidence.model == evidence.original:
        why = f"{_count(cost.original)} {cost.unit} on the original"
        return Tile(label, [("–", "")], why if math.isfinite(cost.original) else UNTESTED)
    paid = f"{_count(cost.original)} {cost.unit} on the original"
    if math.isinf(cost.model):
        most = number(float(f"{cost.most / cost.original:.2g}"))
        return Tile(label, [("not reached", "")], f"within × {most} of the {paid}")
    figure = number(float(f"{cost.multiple:.2g}"))
    return Tile(label, [(f"× {figure}", "")], f"{paid}, {_count(cost.model)} here")


def _attacks(evidence: Evidence) -> Tile:
    """Return how many attacks ran, of how many there are."""
    counts = evidence.counts
    others = {name: n for name, n in counts.items() if name != "done" and n}
    words = {"failed": "failed", "not applicable": "do not apply", "not run": "not run"}
    seeds = min(record.settings["seeds"] for record in evidence.audits)
    said = [f"{n} {words[name]}" for name, n in others.items()]
    said.append(f"{seeds} seed{'s' * (seeds > 1)}")
    return Tile(
        "Attacks run", [(f"{counts['done']} of {sum(counts.values())}", "")], ", ".join(said)
    )
