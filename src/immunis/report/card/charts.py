"""Charts of a card as SVG, without scripts; colours and marks come from the style sheet.

A chart is drawn in 480 units, which a phone shows at three quarters of their size. A series is
told apart by its mark and dash, not only by its colour.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from immunis.core.controls import CONTROL
from immunis.report.format import number, percent

SERIES = 7  # colours and marks of the style sheet, before they begin again
WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 470, 10, 206


@dataclass(frozen=True)
class Axis:
    """Places values between two ends; ``share`` and ``order`` are linear, ``log`` is not."""

    low: float
    high: float
    ends: tuple[float, float]
    kind: str = "share"

    def __call__(self, value: float) -> float:
        """Return the place of a value, kept within the axis."""
        low, high, at = self.low, self.high, value
        if self.kind == "log":
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, 1e-300))
        share = min(max((at - low) / (high - low), 0.0), 1.0)
        return round(self.ends[0] + share * (self.ends[1] - self.ends[0]), 1)

    def ticks(self) -> list[float]:
        """Return a few round values; none where only the order counts."""
        if self.kind == "order":
            return []
        if self.kind == "share":
            usual = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5)
            reach = self.high - self.low
            step = next((s for s in usual if reach <= 6 * s), reach / 5)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            return [round(i * step, 6) for i in range(first, last + 1)]
        low, high = math.log10(self.low), math.log10(self.high)
        step = max(1, math.ceil((high - low) / 5))
        steps = (1, 2, 5) if high - low < 2 else (1,)
        powers = range(math.floor(low), math.ceil(high) + 1, step)
        found = [m * 10.0**i for i in powers for m in steps]
        kept = [tick for tick in found if self.low * 0.999 <= tick <= self.high * 1.001]
        return kept if len(kept) > 1 else [self.low, (self.low * self.high) ** 0.5, self.high]


def axis(values: Iterable[float], ends: tuple[float, float], kind: str) -> Axis:
    """Return an axis that holds some values; one of shares starts at 0 or lower."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or kind != "log")]
    if kind == "share":
        return Axis(max(min([*known, 0.0]), -0.5), max([*known, 0.1]) * 1.02, ends)
    low, high = min(known, default=1.0), max(known, default=10.0)
    return Axis(low, max(high, 2 * low), ends, kind)


def style(name: str, names: Sequence[str]) -> str:
    """Return the class of a series: its number among the models, or the control's own."""
    return "su" if name == CONTROL else f"s{list(names).index(name) % SERIES}"


def tag(name: str, *inside: str, **attributes: object) -> Markup:
    """Return an element, with everything inside it escaped.

    >>> print(tag("text", "a<b", class_="grid", text_anchor="end"))
    <text class="grid" text-anchor="end">a&lt;b</text>
    """
    pairs = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    given = Markup("").join(Markup(' {}="{}"').format(*pair) for pair in pairs.items())
    content = Markup("").join(inside)
    return Markup("<{0}{1}>{2}</{0}>").format(name, given, content)


def legend(shown: Sequence[str], names: Sequence[str], broken: Collection[str] = ()) -> Markup:
    """Return some of the names beside their marks; models that lost their task are broken."""
    items = []
    for name in shown:
        kind = style(name, names)
        look = _path(f"line {kind}", "M1 6H29"), _mark(kind, 15, 6)
        sign = tag("svg", *look, viewBox="0 0 30 12", aria_hidden="true")
        items.append(tag("li", sign, f"{name} (broken)" if name in broken else name))
    return tag("ul", *items, class_="legend")


def _mark(kind: str, x: float, y: float, title: str = "") -> Markup:
    inside = [tag("title", title)] if title else []
    return tag("use", *inside, href=f"#m{kind[1:]}", x=x, y=y, class_=kind)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> Markup:
    return tag("text", text, x=x, y=y, text_anchor=anchor)


def _path(kind: str, path: str) -> Markup:
    return tag("path", class_=kind, d=path)


def _svg(parts: Sequence[Markup], label: str, height: float = HEIGHT) -> Markup:
    size = f"0 0 {WIDTH} {height}"
    return tag("svg", *parts, class_="chart", viewBox=size, role="img", aria_label=label)


def _columns(x: Axis, top: float, bottom: float, place: float) -> list[Markup]:
    """Return the vertical lines of a grid, and their ticks."""
    parts = []
    for tick in x.ticks():
        anchor = "end" if x(tick) > RIGHT - 12 else "middle"
        parts.append(_path("grid", f"M{x(tick)} {top}V{bottom}"))
        parts.append(_text(x(tick), place, _short(tick, x.kind), anchor))
    return parts


def _short(value: float, kind: str = "log") -> str:
    """Return a tick in few letters.

    >>> _short(100.0), _short(1e6), _short(2e-12), _short(0.2, "share")
    ('100', '10⁶', '2·10⁻¹²', '20%')
    """
    if kind == "share":
        return f"{100 * value:.0f}%"
    exponent = math.floor(math.log10(value) + 1e-9)
    first = round(value / 10.0**exponent)
    if 1e-2 <= value < 1e4 or not math.isclose(value, first * 10.0**exponent):
        return number(value)
    raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{first}·10{raised}" if first > 1 else f"10{raised}"


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    label: str,
    axes: tuple[str, str],
    *,
    names: Sequence[str],
    kinds: tuple[str, str] = ("log", "share"),
    stairs: bool = False,
    marks: Iterable[str] = (),
    level: float | None = None,
) -> Markup:
    """Draw series as lines, or ``stairs``, or dots for those in ``marks``; ``level`` is dashed."""
    series = {name: [p for p in of if all(map(math.isfinite, p))] for name, of in series.items()}
    places = [p for points in series.values() for p in points]
    x = axis((p[0] for p in places), (LEFT, RIGHT), kinds[0])
    heights = [*(p[1] for p in places), *([] if level is None else [level])]
    y = axis(heights, (BOTTOM, TOP), kinds[1])
    parts = _columns(x, TOP, BOTTOM, BOTTOM + 16)
    for tick in y.ticks():
        parts.append(_path("grid", f"M{LEFT} {y(tick)}H{RIGHT}"))
        parts.append(_text(LEFT - 6, y(tick) + 4, _short(tick, y.kind), "end"))
    parts.append(_text((LEFT + RIGHT) / 2, BOTTOM + 35, axes[0]))
    turn = f"translate(11 {(TOP + BOTTOM) / 2}) rotate(-90)"
    parts.append(tag("text", axes[1], transform=turn, text_anchor="middle"))
    if level is not None:
        parts.append(_path("level", f"M{LEFT} {y(level)}H{RIGHT}"))
    for name, points in series.items():
        kind = style(name, names)
        if name in marks:
            dots = [{"cx": x(a), "cy": y(b)} for a, b in points]
            parts += [tag("circle", class_=f"dot {kind}", **dot, r=2.5) for dot in dots]
        elif points:
            path = f"M{x(points[0][0])} {y(points[0][1])}"
            for a, b in points[1:]:
                path += f"H{x(a)}V{y(b)}" if stairs else f"L{x(a)} {y(b)}"
            path += f"H{RIGHT}" if stairs else ""
            parts.append(_path(f"line {kind}", path))
            for a, b in points if stairs else (points[0], points[-1]):
                title = f"{name}: {percent(b)}% at {number(float(a))}" if stairs else ""
                parts.append(_mark(kind, x(a), y(b), title))
    return _svg(parts, label)


def dots(
    scores: Mapping[str, Mapping[str, float]], names: Sequence[str], chance: float, label: str
) -> Markup:
    """Draw one row an attack, a mark for the score on each model; chance is dashed."""
    height = 22 * len(scores) + 34
    left = 14 + min(8.6 * max(map(len, scores), default=0), 200)  # a phone's letters are larger
    values = [*(v for row in scores.values() for v in row.values()), chance]
    x = axis(values, (left, RIGHT), "share")
    parts = _columns(x, 4, height - 24, height - 8)
    parts.append(_path("level", f"M{x(chance)} 4V{height - 24}"))
    for row, (attack, by_model) in enumerate(scores.items()):
        y = 15 + 22 * row
        parts.append(_text(left - 8, y + 4, attack, "end"))
        parts.append(_path("grid", f"M{left} {y}H{RIGHT}"))
        for name, value in by_model.items():
            title = f"{attack} on {name}: {percent(value)}%"
            if math.isfinite(value):
                parts.append(_mark(style(name, names), x(value), y, title))
    return _svg(parts, label, height)
