"""How every figure looks: colours that the colour-blind tell apart, dashes and marks for grey."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from immunis.core.controls import CONTROL
from immunis.core.records import Record

# Okabe and Ito's palette, black first; brown and violet for its yellow, too light on white
COLOURS = (
    "#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5C00",
    "#5B4FC0",
)  # fmt: skip
MARKS = ("o", "s", "D", "^", "v", "P", "<", ">", "*")
LINES: tuple[Any, ...] = (
    "-", "-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), ":", (0, (8, 2)), (0, (1, 1)),
)  # fmt: skip
GREY = "#7f7f7f"


def rendered(figure: Any, record: Record, kind: str = "png") -> bytes:
    """Render as PNG or PDF, naming the record's hash inside so that the two can be matched."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Software": None, "Source": record.digest()}
    if kind == "pdf":
        metadata = {"Keywords": record.digest(), "CreationDate": None}
    with rc_context({"pdf.fonttype": 42}):  # TrueType, which publishers ask for
        figure.savefig(buffer, format=kind, dpi=110, metadata=metadata)
    return buffer.getvalue()


def canvas(width: float = 9.5, height: float = 3.8) -> Any:
    """An empty figure of a size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def line(name: str, names: Sequence[str]) -> dict[str, Any]:
    """Colour and dash of a series by its place among the names; the control is grey and dotted."""
    if name == CONTROL:
        return {"color": GREY, "linestyle": ":", "linewidth": 1.6, "label": name}
    place = list(names).index(name)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": LINES[(place + place // len(COLOURS)) % len(LINES)],
        "linewidth": 2.2 if place == 0 else 1.5,
        "label": name,
    }


def mark(name: str, names: Sequence[str]) -> dict[str, Any]:
    """Colour and mark of a series, without a line."""
    if name == CONTROL:
        return {"color": GREY, "marker": "x", "linestyle": "none", "label": name}
    place = list(names).index(name)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKS[place % len(MARKS)],
        "linestyle": "none",
        "label": name,
    }


def legend(figure: Any, axis: Any) -> None:
    """One legend for all axes of a figure, beside them."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
