"""Figures of an audit."""

from __future__ import annotations

import math
from typing import Any

from immunis.core.controls import CONTROL
from immunis.core.records import Record
from immunis.report.format import number
from immunis.report.query import UNITS, defended, envelope, telling_cost
from immunis.report.style import canvas, legend, line, mark, rendered

SHOWN = 6  # learning curves in one figure


def _names(record: Record) -> list[str]:
    return [*record.figures["models"], CONTROL]


def _label(record: Record, name: str) -> str:
    """A model's name in a legend, which says so where it no longer does its own task."""
    return f"{name} (broken)" if record.figures["models"].get(name, {}).get("broken") else name


def _rows(axis: Any, labels: list[str]) -> None:
    """One horizontal row for each label, first on top."""
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.grid(alpha=0.25)


def cost(record: Record, kind: str = "png") -> bytes:
    """Best score that any attack reaches within so many operations or steps, on every model."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = canvas(7.0, 3.8)
    axis = figure.subplots()
    unit = telling_cost(record)
    curves = {name: envelope(record, name, unit) for name in _names(record)}
    last = max((curve[-1][0] for curve in curves.values() if curve), default=1.0)
    for name, curve in curves.items():
        if curve:
            places = [*(x for x, _ in curve), last]
            heights = [100 * y for _, y in curve]
            style = {**line(name, _names(record)), "label": _label(record, name)}
            axis.step(places, [*heights, heights[-1]], where="post", **style)
    axis.axhline(100 * record.figures["chance"], color="#bbbbbb", linewidth=1, zorder=0)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(f"{UNITS[unit]} the attacker spends")
    axis.set_ylabel("best test score (%); grey: chance")
    axis.grid(alpha=0.25)
    legend(figure, axis)
    return rendered(figure, record, kind)


def scores(record: Record, kind: str = "png") -> bytes:
    """Test score of every attack on every model and the untrained control."""
    attacks = record.figures["attacks"]
    figure = canvas(7.5, 1.0 + 0.24 * len(attacks))
    axis = figure.subplots()
    for name in _names(record):
        places = [
            (100 * rows[name]["score"]["mean"], place)
            for place, rows in enumerate(attacks.values())
            if "score" in rows.get(name, {})
        ]
        style = {**mark(name, _names(record)), "label": _label(record, name)}
        axis.plot([x for x, _ in places], [y for _, y in places], **style)
    _rows(axis, list(attacks))
    axis.axvline(100 * record.figures["chance"], color="#555555", linestyle="--", linewidth=1)
    axis.set_xlabel("test score (%); dashed: chance")
    legend(figure, axis)
    return rendered(figure, record, kind)


def advantage(record: Record, kind: str = "png") -> bytes:
    """Share of the original's help that each attack keeps on each defence, with its interval."""
    attacks, names = record.figures["attacks"], defended(record)
    figure = canvas(7.5, 1.0 + 0.32 * len(attacks))
    axis = figure.subplots()
    most = 1.1
    for turn, name in enumerate(names):
        style = {**mark(name, _names(record)), "markersize": 4, "label": _label(record, name)}
        for place, rows in enumerate(attacks.values()):
            kept = rows.get(name, {}).get("residual_advantage", {"mean": math.nan})
            if math.isnan(kept["mean"]):
                continue
            y = place + 0.6 * ((turn + 0.5) / len(names) - 0.5)
            high = min(kept["high"], 2.0)
            most = max(most, high)
            axis.plot([min(kept["low"], 2.0), high], [y, y], color=style["color"], linewidth=1)
            beyond = {"marker": ">"} if kept["mean"] > 2.0 else {}
            axis.plot([min(kept["mean"], 2.0)], [y], **(style | beyond))
            style["label"] = None
    _rows(axis, list(attacks))
    axis.axvline(1.0, color="#555555", linestyle="--", linewidth=1)
    axis.set_xlim(-0.05, most + 0.05)
    axis.set_xlabel("residual advantage (arrows: above 2); dashed: all of the original's help")
    legend(figure, axis)
    return rendered(figure, record, kind)


def curved(record: Record) -> list[str]:
    """Attacks that learn in steps, those that the original serves best first."""
    original = record.settings["original"]
    found = {
        attack: rows[original]["score"]["mean"]
        for attack, rows in record.figures["attacks"].items()
        if len(rows.get(original, {}).get("curve", ())) > 2
    }
    return sorted(found, key=lambda attack: -found[attack])


def curves(record: Record, kind: str = "png") -> bytes:
    """Learning curves of the six attacks with a curve that the original serves best."""
    attacks, chosen = record.figures["attacks"], curved(record)[:SHOWN]
    figure = canvas(9.5, 2.6 * math.ceil(len(chosen) / 3))
    grid = figure.subplots(math.ceil(len(chosen) / 3), 3, sharey=True, squeeze=False)
    for axis, attack in zip(grid.ravel(), chosen, strict=False):
        for name in _names(record):
            points = attacks[attack].get(name, {}).get("curve", ())
            style = {**line(name, _names(record)), "label": _label(record, name)}
            steps = [max(p["steps"], 1) for p in points]
            axis.plot(steps, [100 * p["mean"] for p in points], **style)
            low, high = ([100 * p[end] for p in points] for end in ("low", "high"))
            axis.fill_between(steps, low, high, color=style["color"], alpha=0.12, linewidth=0)
        axis.set_title(attack, fontsize=9)
        axis.set_xscale("log")
        axis.set_xlabel("steps", fontsize=8)
        axis.grid(alpha=0.25)
    for axis in grid.ravel()[len(chosen) :]:
        axis.set_axis_off()
    for row in grid:
        row[0].set_ylabel("test score (%)", fontsize=8)
    legend(figure, grid[0][0])
    return rendered(figure, record, kind)
