"""Figures, drawn from records alone."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from immunis.records import Record

COLOURS = ("#555555", "#9467bd", "#8c564b", "#e377c2", "#1f77b4", "#17becf", "#2ca02c", "#ff7f0e")


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
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
    return _png(figure)


def norm_ratios(record: Record) -> bytes:
    """Norm-ratio curves of probing by exact line search on both tasks (paper, figure 1; PNG)."""
    methods = record.figures["methods"]
    figure, axes = _axes(("primary task: norm ratio", "harmful task: norm ratio"))
    for name, style in _styles(methods).items():
        for axis, task in zip(axes, ("primary", "harmful"), strict=True):
            axis.plot(list(methods[name]["norm_ratio"][task]), **style)
            axis.set_xlabel("probing step")
    axes[0].set_ylabel("‖w_t − w*‖² / ‖w_0 − w*‖²")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return _png(figure)
