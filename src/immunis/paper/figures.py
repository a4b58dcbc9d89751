"""Figures of a reproduction, drawn from its record alone, as PNG or PDF."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from immunis.core.records import Record
from immunis.paper.measures import KINDS, reached
from immunis.paper.published import LARGE, printed
from immunis.report import style
from immunis.report.figures import OTHERS
from immunis.report.style import MARKS, canvas, legend, plain, rendered
from immunis.theory.spectrum import REFERENCE_SHIFT

LOOKS: dict[str, dict[str, Any]] = {  # the identity in front; certified lies on the frontier
    "identity": {"color": style.BLACK, "linewidth": 2.6, "linestyle": "--", "zorder": 5},
    "r_ill": {"color": style.PURPLE},
    "imma": {"color": style.BROWN, "linestyle": "-."},
    "opt_kappa": {"color": style.VIOLET, "linestyle": (0, (5, 1, 1, 1))},
    "opt_log_kappa": {"color": style.ORANGE},
    "r_ill_with_loss": {"color": style.PURPLE, "linestyle": ":"},
    "imma_released": {"color": style.BROWN, "linestyle": ":"},
    "opt_kappa_released": {"color": style.VIOLET, "linestyle": ":"},
    "opt_kappa_ones": {"color": style.ORANGE, "linestyle": "--"},
    "algorithm_1": {"color": style.BLUE},
    "two_processes": {"color": style.BLUE, "linestyle": (0, (1, 2))},
    "text_step": {"color": style.BLUE, "linestyle": (0, (1, 2))},
    "condition": {"color": style.SKY, "linestyle": (0, (8, 2))},
    "certified": {"color": style.GREY, "linewidth": 2.4, "linestyle": ":", "zorder": 4},
    "frontier": {"color": style.GREEN},
    "erase": {"color": style.RED},
}


def _look(name: str) -> dict[str, Any]:
    return LOOKS.get(name, {"color": style.GREY})  # a row of another version


def _label(row: Mapping[str, Any], epochs: str) -> str:
    label = f"{row['label']}, {row['epochs']} {epochs}" if row.get("epochs") else row["label"]
    return plain(label)


def _last_rows(part: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return of each method the row with the most epochs; rows come with rising epochs."""
    return {row["method"]: row for row in part["rows"] if "honest" in row}


def norm_ratio(record: Record, kind: str = "png") -> bytes:
    """Draw the norm ratio of probing both tasks (paper, figure 1), after the most epochs."""
    found = record.figures["norm_ratio"]
    last = {cell.split(" ")[0]: curve for cell, curve in found["curves"].items()}
    figure = canvas(9.5, 4.0)
    axes = figure.subplots(1, 2)
    for axis, task in zip(axes, ("primary", "harmful"), strict=True):
        for name, curve in last.items():
            label = _label(curve, "epochs")
            axis.plot(list(found["steps"]), list(curve[task]), label=label, **_look(name))
        axis.set_title(f"{task} task", fontsize=10)
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xlabel("probing step (exact line search)")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("‖w_t − w*‖² / ‖w_0 − w*‖²")
    legend(figure, axes[0])
    return rendered(figure, record, kind)


def floor_and_ceiling(record: Record, kind: str = "png") -> bytes:
    """Draw the eigenvalues κ is made of with the released floor, and where θ can go at all."""
    pair = record.figures["pair"]
    figure = canvas(9.8, 4.2)
    left, right = figure.subplots(1, 2)
    for task, colour in (("primary", style.BLUE), ("harmful", style.RED)):
        values = [max(abs(value), 1e-17) for value in pair["eigenvalues"][task]]
        rank = pair[task]["rank"]
        places = range(1, len(values) + 1)
        left.plot(places[:rank], values[:rank], ".", color=colour, label=f"{task}: rank {rank}")
        left.plot(places[rank:], values[rank:], "x", color=colour, label=f"{task}: rounding noise")
    left.axhline(REFERENCE_SHIFT, color=style.GREY, linestyle="--", linewidth=1.2)
    left.text(2, 1.6 * REFERENCE_SHIFT, "what the released κ divides by", fontsize=8)
    left.set(yscale="log", xlabel="index", ylabel="|eigenvalue| of the Gram matrix of the inputs")
    left.legend(fontsize=8)
    base = {task: pair[task]["honest"] for task in ("primary", "harmful")}
    ends = (0.5, 1e8)
    right.plot(ends, [base["harmful"] / base["primary"] * k for k in ends], "k--", linewidth=1)
    right.plot(ends, [pair["kappa_m"] * k for k in ends], color=style.RED, linewidth=1)
    right.plot(base["primary"], base["harmful"], "k*", markersize=11, label="identity")
    for mark, (name, row) in zip(MARKS * 2, _last_rows(record.figures).items(), strict=False):
        where = [row["honest"][task]["mean"] * base[task] for task in ("primary", "harmful")]
        right.plot(*where, mark, color=_look(name)["color"], label=_label(row, "ep."))
    ylabel = "κ_H (honest); dashed: RIR = 1"
    right.set(xscale="log", yscale="log", xlim=ends, xlabel="κ_P (honest)", ylabel=ylabel)
    right.set_title("solid line: the most without the free directions", fontsize=9)
    figure.legend(*right.get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    return rendered(figure, record, kind)


def path(record: Record, kind: str = "png") -> bytes:
    """Draw RIR along the epochs of the released loop, with the published figures as lines."""
    figure = canvas(9.5, 3.8)
    axes = figure.subplots(1, 2, sharey=True)
    said = printed(record.name)["methods"]
    labels = {row["method"]: row["label"] for row in record.figures["rows"]}
    for axis, which in zip(axes, KINDS, strict=True):
        for name, curve in record.figures["path"].items():
            axis.plot(curve["epochs"], curve[which], label=plain(labels[name]), **_look(name))
        for name in ("r_ill", "opt_log_kappa", "algorithm_1"):
            rir = said[name.replace("log_", "")]["rir"][0]
            axis.axhline(rir, color=_look(name)["color"], linestyle=":", linewidth=1.2)
        for epochs in record.settings["epochs"]:
            axis.axvline(epochs, color=style.PALE, linewidth=0.8, zorder=0)
        axis.set(xscale="log", yscale="log", xlabel="epochs of the released loop")
        axis.set_title(f"{which} κ", fontsize=10)
        axis.grid(alpha=0.2)
    axes[0].set_ylabel("RIR (level lines: published)")
    legend(figure, axes[0])
    return rendered(figure, record, kind)


def overview(record: Record, kind: str = "png") -> bytes:
    """Draw RIR of each method beside what attackers reach on it; identity on top.

    House Prices shows every method after its most epochs, MNIST the binary protocol.
    """
    house = record.name == "house-prices"
    part = record.figures if house else record.figures["protocols"]["binary"]
    rir, score, scale = ("mean", "median", 1.0) if house else ("median", "mean", 100.0)
    marks = (10, 100, 1000) if house else (1, 10, 200)
    rows = [row for row in _last_rows(part).values() if row["attacks"]][::-1]
    figure = canvas(9.8, 0.8 + 0.42 * (len(rows) + 1))
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(rows) + 1)
    for shift, which, colour in ((0.2, "released", style.SKY), (-0.2, "honest", style.BLUE)):
        values = [*(row[which]["rir"][rir] for row in rows), 1.0]
        where = [place + shift for place in places]
        left.barh(where, values, height=0.36, left=0, color=colour, label=f"RIR, {which} κ")
    left.axvline(1, color=style.GREY, linewidth=0.8)
    left.set(xscale="log", xlabel="mean RIR over the seeds" if house else "median RIR over pairs")
    names = [_label(row, "ep.") for row in rows]
    left.set_yticks(list(places), [*names, "identity (no defence)"], fontsize=8)
    steps = [step for step in marks if step <= record.settings["budget"]]
    height = 0.8 / (len(steps) + 1)
    colours = [*style.DEPTHS[: len(steps)], style.DEPTHS[-1]]
    for index, (step, colour) in enumerate(zip([*steps, None], colours, strict=True)):
        points = [reached(of, step) for of in (*(row["attacks"] for row in rows), part["identity"])]
        values = [scale * max(point[score], 0.0) if point else math.nan for point in points]
        where = [place + 0.4 - height * (index + 0.5) for place in places]
        label = f"{step} steps" if step else "ridge"
        right.barh(where, values, height=height, color=colour, label=label)
    if house:
        right.set_xlabel("median R² on SalePrice that an attacker reaches")
    else:
        label = "mean test accuracy (%) of an attacker; chance is 50"
        right.set(xlim=(40, 100), xlabel=label)
    figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    return rendered(figure, record, kind)


def heat_maps(record: Record, kind: str = "png") -> bytes:
    """Draw log RIR of every digit pair, one map a method, under both κ (paper, figure 2)."""
    import matplotlib
    import numpy as np
    from matplotlib.colors import TwoSlopeNorm

    found = record.figures["protocols"]["paper"]
    rows = {row["method"]: row for row in found["rows"]}
    figure = canvas(2.3 * len(found["maps"]) + 0.9, 5.6)
    axes = figure.subplots(2, len(found["maps"]), squeeze=False)
    norm = TwoSlopeNorm(math.log(LARGE), 0, 3 * math.log(LARGE))
    colours = matplotlib.colormaps["RdBu"].with_extremes(bad=style.PALE)
    for line, which in enumerate(KINDS):
        for axis, (name, maps) in zip(axes[line], found["maps"].items(), strict=True):
            image = axis.imshow(np.array(maps[which], float), cmap=colours, norm=norm)
            row, count = rows[name], rows[name]["successes"][which]
            title = f"{count['large']} succeed, {count['pairs'] - count['large']} fail"
            if len(found["pairs"]) > count["pairs"]:
                title += f", {len(found['pairs']) - count['pairs']} without θ"
            if line == 0:
                run = f"{row['epochs']} epochs of {row['step']}" if row["epochs"] else "closed form"
                title = f"{plain(row['label'])}\n{run}\n{title}"
            axis.set_title(title, fontsize=8)
            axis.set_xticks(range(10), [str(d) for d in range(10)], fontsize=6)
            axis.set_yticks(range(10), [str(d) for d in range(10)], fontsize=6)
        axes[line][0].set_ylabel(f"{which} κ\nprimary digit", fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("harmful digit", fontsize=8)
    bar = figure.colorbar(image, ax=axes.ravel().tolist(), shrink=0.7, extend="both")
    bar.set_label(f"log RIR (white: RIR = {LARGE:.0f}; blue: above)", fontsize=8)
    return rendered(figure, record, kind)


FIGURES: dict[str, dict[str, Callable[..., bytes]]] = {
    "house-prices": {
        "norm-ratio": norm_ratio,
        "path": path,
        "overview": overview,
        "floor-and-ceiling": floor_and_ceiling,
    },
    "mnist": {"heat-maps": heat_maps, "overview": overview},
}
OTHERS["reproduce"] = lambda record: FIGURES[record.name]
