"""How every chart looks, in figures and on cards: colours, marks and dashes of a series.

The colours are Okabe and Ito's, which colour-blind readers tell apart; the first seven have a
contrast of at least 3 on white. Marks and dashes tell series apart in grey print.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from typing import Any

from immunis.core.records import Record
from immunis.core.shapes import CONTROL

BLACK, BLUE, RED = "#000000", "#0072B2", "#D55E00"
GREEN, PURPLE, BROWN = "#009E73", "#A4417A", "#7A5C00"
VIOLET, ORANGE, SKY = "#5B4FC0", "#E69F00", "#56B4E9"
COLOURS = (BLACK, BLUE, RED, GREEN, PURPLE, BROWN, VIOLET, ORANGE, SKY)
GREY, PALE = "#6B7280", "#BBBBBB"  # the control and reference lines; lines behind all others
# the first seven and the control on the dark background of a card
DARK = ("#D3D9E1", "#56B4E9", "#F0894A", "#35C49C", "#E39AC4", "#E0C040", "#A79BFF")
DARK_GREY = "#98A1AD"
DEPTHS = ("#FDD0A2", "#FD8D3C", "#A63603", "#222222")  # bars of attackers, weakest first
MARKS = ("o", "s", "D", "^", "v", "P", "<", ">", "*")
_DASHED: list[Any] = [(0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), ":", (0, (8, 2)), (0, (1, 1))]
LINES = ["-", "-", "--", "-.", *_DASHED]


def rendered(figure: Any, record: Record, kind: str = "png") -> Any:
    """Return the figure as PNG or PDF, with the record's digest inside; as it is for ``figure``."""
    if kind == "figure":
        return figure
    from matplotlib import rc_context

    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Software": None, "Source": record.digest()}
    if kind == "pdf":
        metadata = {"Keywords": record.digest(), "CreationDate": None}
    with rc_context({"pdf.fonttype": 42}):  # TrueType, which publishers ask for
        figure.savefig(buffer, format=kind, dpi=110, metadata=metadata)
    return buffer.getvalue()


def canvas(width: float = 9.5, height: float = 3.8) -> Any:
    """Return an empty figure of a size in inches."""
    return _shown()(figsize=(width, height), layout="constrained")


@cache
def _shown() -> Any:
    """Return matplotlib's ``Figure`` that a notebook shows where pyplot was never imported too."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            self.savefig(buffer := io.BytesIO(), format="png")
            return buffer.getvalue()

    return Shown


def plain(text: str) -> str:
    r"""Return text for a figure: no mathematics, and not hidden from legends by a leading ``_``.

    >>> print(plain("$x"))
    \$x
    """
    return " " * text.startswith("_") + text.replace("$", r"\$")


def line(name: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the colour and dash of a series by its place; the control is grey and dotted."""
    if name == CONTROL:
        return {"color": GREY, "linestyle": ":", "linewidth": 1.6, "label": plain(name)}
    place = list(names).index(name)
    dash = LINES[(place + place // len(COLOURS)) % len(LINES)]
    width = 2.2 if place == 0 else 1.5
    colour = COLOURS[place % len(COLOURS)]
    return {"color": colour, "linestyle": dash, "linewidth": width, "label": plain(name)}


def mark(name: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the colour and mark of a series, without a line."""
    sign = "x" if name == CONTROL else MARKS[list(names).index(name) % len(MARKS)]
    return {**line(name, names), "marker": sign, "linestyle": "none"}


def legend(figure: Any, axis: Any) -> None:
    """Draw one legend for all axes of a figure, beside them."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
