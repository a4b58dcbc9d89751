"""Figures of an immunization."""

from __future__ import annotations

from immunis.core.records import Record
from immunis.report.style import COLOURS, LINES, MARKS, canvas, rendered


def history(record: Record, kind: str = "png") -> bytes:
    """Held-out figures along a network's training: what a probe reads, and the primary score."""
    rows, best = record.figures["details"]["history"], record.figures["details"]["best_step"]
    figure = canvas(9.5, 3.4)
    left, right = figure.subplots(1, 2)
    steps = [row["step"] for row in rows]
    shown = {
        "primary": "primary score",
        "probe": "best ridge probe, harmful",
        "probe_trained": "the same of rows trained on",
        "rho": "ρ of rows trained on",
    }
    shown = {key: label for key, label in shown.items() if key in rows[0]}  # older records lack one
    for place, (key, label) in enumerate(shown.items()):
        look = {"color": COLOURS[place], "linestyle": LINES[place], "marker": MARKS[place]}
        left.plot(steps, [row[key] for row in rows], label=label, markersize=3.5, **look)
    left.set_ylabel("score")
    left.set_ylim(bottom=min(0.0, *(row["rho"] for row in rows)))
    for place, role in enumerate(("primary", "harmful")):
        look = {"color": COLOURS[place], "linestyle": LINES[place + 1], "marker": MARKS[place]}
        values = [row[f"kappa_{role}"] for row in rows]
        right.plot(steps, values, label=f"κ, {role}", markersize=3.5, **look)
    right.set_yscale("log")
    right.set_ylabel("condition number")
    for axis in (left, right):
        axis.axvline(best, color="#555555", linewidth=1, linestyle=":")
        axis.set_xlabel("training step (dotted: the one kept)")
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8)
    return rendered(figure, record, kind)
