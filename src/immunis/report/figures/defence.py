"""Figures of defences: spectra, the training of a network, and the demo's methods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from immunis.core.records import Record
from immunis.report import style
from immunis.report.query import ROLES, outlines
from immunis.report.style import canvas, legend, line, rendered

HISTORY = {
    "primary": "primary score",
    "probe": "best ridge probe, harmful",
    "probe_trained": "the same on training rows",
    "rho": "ρ on training rows",
}


def _panels(curves: Mapping[Any, dict[str, Any]], labels: tuple[str, str]) -> Any:
    """Return a figure with a panel for each task, and a line for each model's points."""
    figure = canvas()
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (role, by_model) in zip(axes, curves.items(), strict=True):
        for name, (label, places, values) in by_model.items():
            axis.plot(places, values, **{**line(name, list(by_model)), "label": label})
        axis.set_title(f"{role} task", fontsize=10)
        axis.set_xlabel(labels[0])
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel(labels[1])
    legend(figure, axes[0])
    return figure


def spectra(record: Record, kind: str = "png") -> bytes:
    """Draw the eigenvalues of both tasks for every model, each over the largest."""
    curves: dict[str, dict[str, Any]] = {}
    found = outlines(record)
    for role, by_model in found.items():
        curves[role] = {}
        for name, o in by_model.items():
            ranks = ", ".join(str(found[task][name].rank) for task in found)
            label = f"{name} (rank {ranks} of {o.dimension})"
            curves[role][name] = label, o.places, o.values
    return rendered(_panels(curves, ("index", "eigenvalue / largest")), record, kind)


def history(record: Record, kind: str = "png") -> bytes:
    """Draw the held-out figures along a network's training: probe, primary score, κ."""
    details = record.figures["details"]
    rows = details["history"]
    figure = canvas(9.5, 3.4)
    left, right = figure.subplots(1, 2)
    steps = [row["step"] for row in rows]
    kappas = {f"kappa_{role}": f"κ, {role}" for role in ROLES}
    for axis, shown, shift in ((left, HISTORY, 0), (right, kappas, 1)):
        present = [key for key in shown if key in rows[0]]  # older records lack one
        for place, key in enumerate(present):
            look = {"linestyle": style.LINES[place + shift], "marker": style.MARKS[place]}
            look |= {"color": style.COLOURS[place], "label": shown[key], "markersize": 3.5}
            axis.plot(steps, [row.get(key, math.nan) for row in rows], **look)
        axis.axvline(details.get("best_step", steps[-1]), color="#555555", linewidth=1, ls=":")
        axis.set_xlabel("training step (dotted: the one kept)")
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8)
    left.set_ylabel("score")
    left.set_ylim(bottom=min(0.0, *(row["rho"] for row in rows)))
    right.set_yscale("log")
    right.set_ylabel("condition number")
    return rendered(figure, record, kind)


def norm_ratios(record: Record, kind: str = "png") -> bytes:
    """Draw the norm ratio of probing both tasks by exact line search (paper, figure 1)."""
    rows = {name: row["norm_ratio"] for name, row in record.figures["methods"].items()}
    curves = {
        role: {name: (name, row["steps"], row[role]) for name, row in rows.items()}
        for role in ROLES
    }
    figure = _panels(curves, ("probing step", "‖w_t − w*‖² / ‖w_0 − w*‖²"))
    for axis in figure.axes:
        axis.set_xscale("symlog", linthresh=1)
        axis.set_ylim(1e-3, 1.5)
    return rendered(figure, record, kind)


def overview(record: Record, kind: str = "png") -> bytes:
    """Draw RIR of every method beside the harmful accuracy that an attacker still reaches."""
    f = record.figures
    names = list(f["methods"])[::-1]
    figure = canvas()
    left, right = figure.subplots(1, 2, sharey=True)
    left.barh(names, [f["methods"][n]["rir"]["value"] for n in names], color=style.BLUE)
    left.set_xscale("log")
    left.axvline(f["ceiling"], color=style.RED, linestyle="--", linewidth=1.2)
    left.set_xlabel("relative immunization ratio (dashed: its ceiling RIR*)")
    reads = [f["methods"][name]["harmful_accuracy"] for name in names]
    bars = {
        f"{step} descent steps": [100 * read["gradient_descent"][str(step)] for read in reads]
        for step in record.settings["steps"]
    }
    bars["ridge"] = [100 * read["ridge"] for read in reads]
    for place, (label, values) in enumerate(bars.items()):
        places = [row + 0.3 - 0.2 * place for row in range(len(names))]
        right.barh(places, values, height=0.2, color=style.DEPTHS[place], label=label)
    right.set_xlabel("harmful test accuracy an attacker reaches (%)")
    right.set_xlim(0, 100)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return rendered(figure, record, kind)
