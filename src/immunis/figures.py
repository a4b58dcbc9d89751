"""Figures, drawn from records alone."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from immunis.records import Record

COLOURS = ("#555555", "#9467bd", "#8c564b", "#e377c2", "#1f77b4", "#17becf", "#2ca02c", "#ff7f0e")


def rendered(figure: Any, record: Record, kind: str = "png") -> bytes:
    """Render as PNG or PDF, naming the record's hash inside so that the two can be matched."""
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Software": None, "Source": record.digest()}
    if kind == "pdf":
        metadata = {"Keywords": record.digest(), "CreationDate": None}
    figure.savefig(buffer, format=kind, dpi=110, metadata=metadata)
    return buffer.getvalue()


def _axes(title: tuple[str, str], width: float = 9.5, height: float = 3.8) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, text in zip(axes, title, strict=True):
        axis.set_title(text, fontsize=10)
        axis.set_yscale("log")
        axis.grid(alpha=0.25)
    return figure, axes


def _styles(methods: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "color": COLOURS[index % len(COLOURS)],
            "linewidth": 2.4 if index == 0 else 1.4,
            "linestyle": "-" if index < len(COLOURS) else "--",
            "label": name,
        }
        for index, name in enumerate(methods)
    }


def spectra(record: Record) -> bytes:
    """Eigenvalues of both Hessians for every method, each relative to its largest (PNG)."""
    methods = record.figures["methods"]
    figure, axes = _axes(("primary task: eigenvalues of H_P", "harmful task: eigenvalues of H_H"))
    for name, style in _styles(methods).items():
        for axis, task in zip(axes, ("primary", "harmful"), strict=True):
            spectrum = methods[name]["spectra"][task]
            kept = list(spectrum["eigenvalues"])[: spectrum["rank"]]
            axis.plot(range(1, len(kept) + 1), [v / kept[0] for v in kept], **style)
            axis.set_xlabel("index")
    axes[0].set_ylabel("eigenvalue / largest")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return rendered(figure, record)


def norm_ratios(record: Record) -> bytes:
    """Norm-ratio curves of probing by exact line search on both tasks (paper, figure 1; PNG)."""
    methods = record.figures["methods"]
    figure, axes = _axes(("primary task: norm ratio", "harmful task: norm ratio"))
    for name, style in _styles(methods).items():
        for axis, task in zip(axes, ("primary", "harmful"), strict=True):
            curve = methods[name]["norm_ratio"]
            axis.plot(list(curve["steps"]), list(curve[task]), **style)
            axis.set_xlabel("probing step")
            axis.set_xscale("symlog", linthresh=1)
            axis.set_ylim(1e-3, 1.5)
    axes[0].set_ylabel("‖w_t − w*‖² / ‖w_0 − w*‖²")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return rendered(figure, record)


def overview(record: Record) -> bytes:
    """RIR of every method beside what an attacker still reads of the harmful task (PNG)."""
    from matplotlib.figure import Figure

    methods = record.figures["methods"]
    names = list(methods)[::-1]
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    left.barh(names, [methods[n]["rir"]["value"] for n in names], color="#1f77b4")
    left.set_xscale("log")
    left.axvline(record.figures["ceiling"], color="#d62728", linestyle="--", linewidth=1.2)
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
    return rendered(figure, record)
