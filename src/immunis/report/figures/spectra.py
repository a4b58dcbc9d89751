"""Eigenvalues of both tasks' features, from any record that holds them."""

from __future__ import annotations

from immunis.core.records import Record
from immunis.report.query import outlines
from immunis.report.style import canvas, legend, line, rendered


def spectra(record: Record, kind: str = "png") -> bytes:
    """Eigenvalues of both tasks for every model, each over the largest; ranks in the legend."""
    found = outlines(record)
    figure = canvas()
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (role, by_model) in zip(axes, found.items(), strict=True):
        for name, o in by_model.items():
            style = line(name, list(by_model))
            ranks = [found[task][name].rank for task in found]
            style["label"] = f"{name} (rank {ranks[0]}, {ranks[1]} of {o.dimension})"
            axis.plot(o.places, o.values, **style)
        axis.set_title(f"{role} task", fontsize=10)
        axis.set_xlabel("index")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("eigenvalue / largest")
    legend(figure, axes[0])
    return rendered(figure, record, kind)
