"""Figures of an audit."""

from __future__ import annotations

import math
from typing import Any

from immunis.core.controls import CONTROL
from immunis.core.records import Record
from immunis.report import query
from immunis.report.format import number
from immunis.report.style import canvas, legend, line, mark, rendered

SHOWN = 6  # learning curves in one figure
MOST = 2.0  # the largest residual advantage that is drawn in its place


def _looks(record: Record, look: Any) -> dict[str, dict[str, Any]]:
    """Return the style and legend entry of every model and the control."""
    names = [*record.figures["models"], CONTROL]
    return {name: {**look(name, names), "label": query.called(record, name)} for name in names}


def _rows(axis: Any, labels: list[str]) -> None:
    """Give each label a horizontal row, the first on top."""
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.grid(alpha=0.25)


def cost(record: Record, kind: str = "png") -> bytes:
    """Draw the best score that any attack reaches on every model, by cost."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = canvas(7.0, 3.8)
    axis = figure.subplots()
    unit = query.telling_cost(record)
    looks = _looks(record, line)
    curves = {name: query.envelope(record, name, unit) for name in looks}
    last = max((curve[-1][0] for curve in curves.values() if curve), default=1.0)
    for name, curve in curves.items():
        if curve:
            places, heights = zip(*curve, (last, curve[-1][1]), strict=True)
            axis.step(places, [100 * y for y in heights], where="post", **looks[name])
    axis.axhline(100 * record.figures["chance"], color="#bbbbbb", linewidth=1, zorder=0)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(f"{query.UNITS[unit]} the attacker spends")
    axis.set_ylabel("best test score (%); grey: chance")
    axis.grid(alpha=0.25)
    legend(figure, axis)
    return rendered(figure, record, kind)


def scores(record: Record, kind: str = "png") -> bytes:
    """Draw the test score of every attack on every model and the control."""
    attacks = list(record.figures["attacks"])
    figure = canvas(7.5, 1.0 + 0.24 * len(attacks))
    axis = figure.subplots()
    for name, look in _looks(record, mark).items():
        found = query.scores(record.figures["attacks"], name)
        axis.plot([100 * x for x in found.values()], [attacks.index(a) for a in found], **look)
    _rows(axis, attacks)
    axis.axvline(100 * record.figures["chance"], color="#555555", linestyle="--", linewidth=1)
    axis.set_xlabel("test score (%); dashed: chance")
    legend(figure, axis)
    return rendered(figure, record, kind)


def advantage(record: Record, kind: str = "png") -> bytes:
    """Draw the share of the original's help that each attack keeps, with its interval."""
    names, looks = query.defended(record), _looks(record, mark)
    attacks = list(record.figures["attacks"])
    figure = canvas(7.5, 1.0 + 0.32 * len(attacks))
    axis = figure.subplots()
    most = 1.1
    for turn, name in enumerate(names):
        look = {**looks[name], "markersize": 4}
        for place, rows in enumerate(record.figures["attacks"].values()):
            kept = rows.get(name, {}).get("residual_advantage")
            if not kept or math.isnan(kept["mean"]):
                continue
            y = place + 0.6 * ((turn + 0.5) / len(names) - 0.5)
            mean, low, high = (min(kept[end], MOST) for end in ("mean", "low", "high"))
            most = max(most, high)
            axis.plot([low, high], [y, y], color=look["color"], linewidth=1)
            beyond = {"marker": ">"} if kept["mean"] > MOST else {}
            axis.plot([mean], [y], **(look | beyond))
            look["label"] = None
    _rows(axis, attacks)
    axis.axvline(1.0, color="#555555", linestyle="--", linewidth=1)
    axis.set_xlim(-0.05, most + 0.05)
    axis.set_xlabel("residual advantage (arrows: above 2); dashed: all of the original's help")
    legend(figure, axis)
    return rendered(figure, record, kind)


def curved(record: Record) -> list[str]:
    """Return the attacks that learn in steps, highest score on the original first."""
    original, attacks = record.settings["original"], record.figures["attacks"]
    found = query.scores(attacks, original)
    steps = [attack for attack in found if len(attacks[attack][original]["curve"]) > 2]
    return sorted(steps, key=lambda attack: -found[attack])


def curves(record: Record, kind: str = "png") -> bytes:
    """Draw the learning curves of the six attacks that score highest on the original."""
    attacks, chosen = record.figures["attacks"], curved(record)[:SHOWN]
    height = math.ceil(len(chosen) / 3)
    figure = canvas(9.5, 2.6 * height)
    grid = figure.subplots(height, 3, sharey=True, squeeze=False)
    for axis, attack in zip(grid.ravel(), chosen, strict=False):
        for name, look in _looks(record, line).items():
            points = attacks[attack].get(name, {}).get("curve", ())
            steps = [max(point["steps"], 1) for point in points]
            mean, low, high = ([100 * p[end] for p in points] for end in ("mean", "low", "high"))
            axis.plot(steps, mean, **look)
            axis.fill_between(steps, low, high, color=look["color"], alpha=0.12, linewidth=0)
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
