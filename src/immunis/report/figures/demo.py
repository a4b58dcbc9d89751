"""Figures of the demo."""

from __future__ import annotations

from immunis.core.records import Record
from immunis.report import style
from immunis.report.style import canvas, legend, line, rendered


def norm_ratios(record: Record, kind: str = "png") -> bytes:
    """Norm-ratio curves of probing by exact line search on both tasks (paper, figure 1)."""
    methods = record.figures["methods"]
    figure = canvas()
    axes = figure.subplots(1, 2, sharey=True)
    for axis, task in zip(axes, ("primary", "harmful"), strict=True):
        for name, row in methods.items():
            curve = row["norm_ratio"]
            axis.plot(list(curve["steps"]), list(curve[task]), **line(name, list(methods)))
        axis.set_title(f"{task} task", fontsize=10)
        axis.set_xlabel("probing step")
        axis.set_xscale("symlog", linthresh=1)
        axis.set_yscale("log")
        axis.set_ylim(1e-3, 1.5)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("‖w_t − w*‖² / ‖w_0 − w*‖²")
    legend(figure, axes[0])
    return rendered(figure, record, kind)


def overview(record: Record, kind: str = "png") -> bytes:
    """RIR of every method beside what an attacker still reads of the harmful task."""
    methods = record.figures["methods"]
    names = list(methods)[::-1]
    figure = canvas()
    left, right = figure.subplots(1, 2, sharey=True)
    left.barh(names, [methods[n]["rir"]["value"] for n in names], color=style.BLUE)
    left.set_xscale("log")
    left.axvline(record.figures["ceiling"], color=style.RED, linestyle="--", linewidth=1.2)
    left.set_xlabel("relative immunization ratio (dashed: its ceiling RIR*)")
    attacks = [(f"{t} descent steps", str(t)) for t in record.settings["steps"]] + [("ridge", "")]
    for (label, key), colour, shift in zip(
        attacks, ("#fdd0a2", "#fd8d3c", "#a63603", "#222222"), (0.3, 0.1, -0.1, -0.3), strict=True
    ):
        reads = [methods[n]["harmful_accuracy"] for n in names]
        values = [100 * (r["gradient_descent"][key] if key else r["ridge"]) for r in reads]
        places = [i + shift for i in range(len(names))]
        right.barh(places, values, height=0.2, color=colour, label=label)
    right.set_xlabel("harmful test accuracy an attacker reaches (%)")
    right.set_xlim(0, 100)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return rendered(figure, record, kind)
