"""Charts of a card as SVG, without scripts; colours and marks come from the style sheet.

A chart is drawn in one of a few frames, whose units are about a pixel where they are shown: one
frame as wide as the page, one as wide as a phone. A series is told apart by its mark and dash, not
only by its colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from immunis.core.shapes import CONTROL
from immunis.report.format import RAISED, number, percent

SERIES = 7  # colours and marks of the style sheet, before they begin again
LEVELS = ("end chance", "end threshold")  # classes of their names
APART = 15.0  # between the names at the ends of lines
WIDTH = 7.5  # of a letter, at most
Place = tuple[float, float]


@dataclass(frozen=True)
class Frame:
    """The size of a chart, the room at its left and right, and where it is shown."""

    width: int
    height: int
    left: int = 50
    after: int = 12
    shown: str = ""
    labelled: bool = False  # lines bear their names at their ends

    @property
    def right(self) -> int:
        """Where the axes end."""
        return self.width - self.after

    @property
    def bottom(self) -> int:
        """Where the axes begin."""
        return self.height - 42


WIDE = Frame(928, 340, after=170, shown="wide-only", labelled=True)
FULL = Frame(928, 340, shown="wide-only")
NARROW = Frame(358, 270, left=44, shown="narrow-only")
HALF = Frame(440, 250)
SMALL = Frame(280, 170, left=40)
TOP = 12


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

    def ticks(self, most: int = 6) -> list[float]:
        """Return a few round values; none where only the order counts."""
        if self.kind == "order":
            return []
        if self.kind == "share":
            usual = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5)
            reach = self.high - self.low
            step = next((s for s in usual if reach <= most * s), reach / (most - 1))
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            return [round(i * step, 6) for i in range(first, last + 1)]
        low, high = math.log10(self.low), math.log10(self.high)
        step = max(1, math.ceil((high - low) / (most - 1)))
        steps = (1, 2, 5) if high - low < 2 else (1,)
        powers = range(math.floor(low), math.ceil(high) + 1, step)
        found = [m * 10.0**i for i in powers for m in steps]
        kept = [tick for tick in found if self.low * 0.999 <= tick <= self.high * 1.001]
        return kept if len(kept) > 1 else [self.low, (self.low * self.high) ** 0.5, self.high]


def axis(values: Iterable[float], ends: tuple[float, float], kind: str, floor: float = 0.0) -> Axis:
    """Return an axis that holds some values; one of shares starts at ``floor`` or lower."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or kind != "log")]
    if kind == "share":
        return Axis(max(min([*known, floor]), -0.5), max([*known, floor + 0.1]) * 1.02, ends)
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


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> Markup:
    return tag("text", text, x=x, y=y, text_anchor=anchor, **({"class_": kind} if kind else {}))


def _path(kind: str, path: str) -> Markup:
    return tag("path", class_=kind, d=path)


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
    raised = str(exponent).translate(RAISED)
    return f"{first}·10{raised}" if first > 1 else f"10{raised}"


def both(draw: Callable[[Frame], Markup], wide: Frame = WIDE) -> Markup:
    """Return a chart twice: as wide as the page, and as wide as a phone. The page shows one."""
    return Markup("").join(draw(frame) for frame in (wide, NARROW))


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    label: str,
    axes: tuple[str, str],
    *,
    names: Sequence[str],
    frame: Frame = HALF,
    kinds: tuple[str, str] = ("log", "share"),
    stairs: bool = False,
    marks: Collection[str] = (),
    levels: Mapping[str, float] | None = None,
) -> Markup:
    """Draw series as lines, or ``stairs``, or dots for those in ``marks``; ``levels`` are dashed.

    An axis of shares begins a little below the lowest level, or at 0 without one.
    """
    series = {name: [p for p in of if all(map(math.isfinite, p))] for name, of in series.items()}
    levels = {text: at for text, at in (levels or {}).items() if math.isfinite(at)}
    places = [p for points in series.values() for p in points]
    x = axis((p[0] for p in places), (frame.left, frame.right), kinds[0])
    heights = [*(p[1] for p in places), *levels.values()]
    floor = max(0.0, min(levels.values()) - 0.05 * max(heights)) if levels else 0.0
    y = axis(heights, (frame.bottom, TOP), kinds[1], floor)
    parts = _grid(frame, x, y, axes)
    ends: dict[str, tuple[float, str]] = {}  # of each line, where it ends and its class
    for text, at in levels.items():
        parts.append(_path(f"level {text}", f"M{frame.left} {y(at)}H{frame.right}"))
        ends[f"{text} {percent(at)}%"] = y(at), f"end {text}"
    for name, points in series.items():
        kind = style(name, names)
        if name in marks:
            dots = [{"cx": x(a), "cy": y(b)} for a, b in points]
            parts += [tag("circle", class_=f"dot {kind}", **dot, r=2.5) for dot in dots]
        elif points:
            parts.append(_path(f"line {kind}", _route(points, x, y, stairs, frame)))
            for a, b in points if stairs else (points[0], points[-1]):
                title = f"{name}: {percent(b)}% at {number(float(a))}" if stairs else ""
                parts.append(_mark(kind, x(a), y(b), title))
            short = name if len(name) < 16 else f"{name[:14]}…"
            ends[f"{short} {percent(points[-1][1])}%"] = y(points[-1][1]), f"end {kind}"
    placed = [[(x(a), y(b)) for a, b in points] for points in series.values() if points]
    parts += _named(ends, frame, placed)
    size = f"0 0 {frame.width} {frame.height}"
    shown = f"chart {frame.shown}".rstrip()
    return tag("svg", *parts, class_=shown, viewBox=size, role="img", aria_label=label)


def _grid(frame: Frame, x: Axis, y: Axis, axes: tuple[str, str]) -> list[Markup]:
    """Return both axes: lines, ticks and what they count."""
    parts = []
    for tick in x.ticks(frame.width // 90 + 2):
        anchor = "end" if x(tick) > frame.width - 18 else "middle"
        parts.append(_path("grid", f"M{x(tick)} {TOP}V{frame.bottom}"))
        parts.append(_text(x(tick), frame.bottom + 17, _short(tick, x.kind), anchor, "soft"))
    for tick in y.ticks():
        parts.append(_path("grid", f"M{frame.left} {y(tick)}H{frame.right}"))
        parts.append(_text(frame.left - 7, y(tick) + 4, _short(tick, y.kind), "end", "soft"))
    middle = (frame.left + frame.right) / 2
    parts.append(_text(middle, frame.height - 6, axes[0], kind="soft"))
    if axes[1] and frame.left >= HALF.left:
        turn = f"translate(11 {(TOP + frame.bottom) / 2}) rotate(-90)"
        parts.append(tag("text", axes[1], transform=turn, text_anchor="middle", class_="soft"))
    return parts


def _route(
    points: Sequence[tuple[float, float]], x: Axis, y: Axis, stairs: bool, frame: Frame
) -> str:
    """Return the path of a line; one of stairs goes on to the right end."""
    path = f"M{x(points[0][0])} {y(points[0][1])}"
    for a, b in points[1:]:
        path += f"H{x(a)}V{y(b)}" if stairs else f"L{x(a)} {y(b)}"
    return path + (f"H{frame.right}" if stairs else "")


def _named(
    ends: Mapping[str, tuple[float, str]], frame: Frame, stairs: Sequence[Sequence[Place]]
) -> list[Markup]:
    """Return what lines are called, at their ends, moved apart where they are near.

    A frame without room beside it names levels only, on their lines where no stairs pass.
    """
    parts, least = [], 0.0
    for text, (y, kind) in sorted(ends.items(), key=lambda pair: pair[1][0]):
        if frame.labelled:
            least = max(y + 4, least + APART)
            parts.append(_text(frame.right + 8, least, text, "start", kind))
        elif kind in LEVELS:
            x, height, anchor = _free(y, WIDTH * len(text), frame, stairs)
            parts.append(_text(x, height, text, anchor, kind))
    return parts


def _free(
    level: float, width: float, frame: Frame, stairs: Sequence[Sequence[Place]]
) -> tuple[float, float, str]:
    """Return where a text of some width stands free beside a level, and its anchor."""
    ends = ((frame.right - 4, "end"), (frame.left + 4, "start"))
    found = [(x, level + shift, anchor) for x, anchor in ends for shift in (14, -5)]
    found = [each for each in found if TOP + 10 < each[1] < frame.bottom]

    def crossed(x: float, y: float, anchor: str) -> bool:
        left = x - width if anchor == "end" else x
        return any(_crosses(of, (left, left + width), (y - 12, y + 4), frame) for of in stairs)

    return next((each for each in found if not crossed(*each)), found[0])


def _crosses(stairs: Sequence[Place], across: Place, down: Place, frame: Frame) -> bool:
    """Return True if stairs pass through a box."""
    following = [*stairs[1:], (frame.right, stairs[-1][1])]
    for (a, b), (c, d) in zip(stairs, following, strict=True):
        level = a <= across[1] and c >= across[0] and down[0] <= b <= down[1]
        rise = across[0] <= c <= across[1] and min(b, d) <= down[1] and max(b, d) >= down[0]
        if level or rise:
            return True
    return False
