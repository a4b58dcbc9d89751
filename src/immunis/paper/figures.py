"""Figures of a reproduction, drawn from its record alone, as PNG or PDF."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from immunis.core.records import Record
from immunis.paper.published import LARGE, printed
from immunis.report import style
from immunis.report.figures import OTHERS
from immunis.report.style import MARKS, canvas, rendered
from immunis.theory.spectrum import REFERENCE_SHIFT

COLOURS = {
    "identity": style.BLACK,
    "r_ill": style.PURPLE,
    "imma": style.BROWN,
    "opt_kappa": style.VIOLET,
    "opt_log_kappa": style.ORANGE,
    "algorithm_1": style.BLUE,
    "condition": style.SKY,
    "certified": style.GREY,
    "frontier": style.GREEN,
    "erase": style.RED,
}


LINES: dict[str, dict[str, Any]] = {  # the identity in front; certified lies on the frontier
    "identity": {"linewidth": 2.6, "linestyle": "--", "zorder": 5},
    "certified": {"linewidth": 2.4, "linestyle": ":", "zorder": 4},
    "imma": {"linestyle": "-."},
    "opt_kappa": {"linestyle": (0, (5, 1, 1, 1))},
    "condition": {"linestyle": (0, (8, 2))},
}


def _last(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Of each method the cell with the most epochs."""
    found: dict[str, Mapping[str, Any]] = {}
    for cell, value in cells.items():
        found[cell.split(" ")[0]] = value  # cells come with rising epochs
    return found


def norm_ratio(record: Record, kind: str = "png") -> bytes:
    """Norm ratio of probing both tasks (paper, figure 1), each method after its most epochs."""
    found = record.figures["norm_ratio"]
    figure = canvas(9.5, 4.0)
    axes = figure.subplots(1, 2)
    for axis, task in zip(axes, ("primary", "harmful"), strict=True):
        for name, curve in _last(found["curves"]).items():
            epochs = f", {curve['epochs']} epochs" if curve["epochs"] else ""
            line = LINES.get(name, {})
            axis.plot(
                list(found["steps"]), list(curve[task]), color=COLOURS[name],
                label=f"{curve['label']}{epochs}", **line,
            )  # fmt: skip
        axis.set_title(f"{task} task", fontsize=10)
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xlabel("probing step (exact line search)")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("‖w_t − w*‖² / ‖w_0 − w*‖²")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return rendered(figure, record, kind)


def floor_and_ceiling(record: Record, kind: str = "png") -> bytes:
    """Left: the eigenvalues κ is made of, and the released floor. Right: where θ can go at all."""
    pair = record.figures["pair"]
    figure = canvas(9.8, 4.2)
    left, right = figure.subplots(1, 2)
    for task, colour in (("primary", style.BLUE), ("harmful", style.RED)):
        values = [max(abs(value), 1e-17) for value in pair["eigenvalues"][task]]
        rank = pair[task]["rank"]
        places = range(1, len(values) + 1)
        left.plot(places[:rank], values[:rank], ".", color=colour, label=f"{task}: rank {rank}")
        left.plot(places[rank:], values[rank:], "x", color=colour, label=f"{task}: rounding noise")
    left.axhline(REFERENCE_SHIFT, color="#888888", linestyle="--", linewidth=1.2)
    left.text(2, 1.6 * REFERENCE_SHIFT, "what the released κ divides by", fontsize=8)
    left.set_yscale("log")
    left.set_xlabel("index")
    left.set_ylabel("|eigenvalue| of the Gram matrix of the inputs")
    left.legend(fontsize=8)
    base = {task: pair[task]["honest"] for task in ("primary", "harmful")}
    ends = (0.5, 1e8)
    right.plot(ends, [base["harmful"] / base["primary"] * k for k in ends], "k--", linewidth=1)
    right.plot(ends, [pair["kappa_m"] * k for k in ends], color=style.RED, linewidth=1)
    right.plot(base["primary"], base["harmful"], "k*", markersize=11, label="identity")
    last = {row["method"]: row for row in record.figures["rows"] if "honest" in row}
    for mark, (name, row) in zip(MARKS * 2, last.items(), strict=False):
        where = [row["honest"][task]["mean"] * base[task] for task in ("primary", "harmful")]
        epochs = f", {row['epochs']} ep." if row["epochs"] else ""
        right.plot(*where, mark, color=COLOURS[name], label=f"{row['label']}{epochs}")
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xlim(*ends)
    right.set_xlabel("κ_P (honest)")
    right.set_ylabel("κ_H (honest); dashed: RIR = 1")
    right.set_title("solid line: the most without the free directions", fontsize=9)
    figure.legend(*right.get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    return rendered(figure, record, kind)


def path(record: Record, kind: str = "png") -> bytes:
    """RIR along the epochs of the released loop, with the published figures as lines."""
    figure = canvas(9.5, 3.8)
    axes = figure.subplots(1, 2, sharey=True)
    said = printed(record.name)["methods"]
    labels = {row["method"]: row for row in record.figures["rows"]}
    for axis, which in zip(axes, ("released", "honest"), strict=True):
        for name, curve in record.figures["path"].items():
            colour = COLOURS[name]
            axis.plot(curve["epochs"], curve[which], color=colour, label=labels[name]["label"])
        for name, colour in (
            ("r_ill", "r_ill"),
            ("opt_kappa", "opt_log_kappa"),
            ("algorithm_1",) * 2,
        ):
            axis.axhline(said[name]["rir"][0], color=COLOURS[colour], linestyle=":", linewidth=1.2)
        for epochs in record.settings["epochs"]:
            axis.axvline(epochs, color="#bbbbbb", linewidth=0.8, zorder=0)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("epochs of the released loop")
        axis.set_title(f"{which} κ", fontsize=10)
        axis.grid(alpha=0.2)
    axes[0].set_ylabel("RIR (dotted: published)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return rendered(figure, record, kind)


def _overview(
    rows: Sequence[Mapping[str, Any]],
    identity: Mapping[str, Any],
    steps: Sequence[int],
    labels: tuple[str, str],
    scale: float,
    statistics: tuple[str, str],
) -> Any:
    """RIR of each row beside what attackers reach on it; identity on top."""
    rows = [row for row in rows if "honest" in row and row["attacks"]][::-1]
    names = [
        f"{row['label']}{', ' + str(row['epochs']) + ' ep.' if row.get('epochs') else ''}"
        for row in rows
    ]
    figure = canvas(9.8, 0.8 + 0.42 * (len(rows) + 1))
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(rows) + 1)
    for shift, which, colour in ((0.2, "released", "#9ecae1"), (-0.2, "honest", "#1f77b4")):
        values = [*(row[which]["rir"][statistics[0]] for row in rows), 1.0]
        where = [place + shift for place in places]
        left.barh(where, values, height=0.36, left=0, color=colour, label=f"RIR, {which} κ")
    left.set_xscale("log")
    left.axvline(1, color="#888888", linewidth=0.8)
    left.set_xlabel(labels[0])
    left.set_yticks(list(places), [*names, "identity (no defence)"], fontsize=8)
    reads = [*(row["attacks"] for row in rows), identity]
    colours = ("#fdd0a2", "#fd8d3c", "#a63603", "#222222")
    height = 0.8 / (len(steps) + 1)
    for index, step in enumerate([*steps, None]):
        values = [scale * max(_reach(read, step, statistics[1]), 0.0) for read in reads]
        where = [place + 0.4 - height * (index + 0.5) for place in places]
        label = "ridge" if step is None else f"{step} steps"
        colour = colours[-1] if step is None else colours[index]
        right.barh(where, values, height=height, color=colour, label=label)
    right.set_xlabel(labels[1])
    figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _reach(attacks: Mapping[str, Any], step: int | None, statistic: str) -> float:
    """What descent reaches after a step, or (None) ridge regression: mean or median."""
    if step is None:
        return float(attacks.get("ridge", {}).get("score", {}).get(statistic, math.nan))
    curve = attacks.get("gd_line_search", {}).get("curve", [])
    return next((float(p[statistic]) for p in curve if p["steps"] == step), math.nan)


def house_prices_overview(record: Record, kind: str = "png") -> bytes:
    """RIR beside the R² of the attackers, every method after its most epochs."""
    last = list({row["method"]: row for row in record.figures["rows"] if "honest" in row}.values())
    labels = "mean RIR over the seeds", "median R² on SalePrice that an attacker reaches"
    steps = [s for s in (10, 100, 1000) if s <= record.settings["budget"]]
    figure = _overview(last, record.figures["identity"], steps, labels, 1.0, ("mean", "median"))
    return rendered(figure, record, kind)


def mnist_overview(record: Record, kind: str = "png") -> bytes:
    """RIR beside the accuracy of the attackers in the binary protocol."""
    found = record.figures["protocols"]["binary"]
    labels = "median RIR over pairs", "mean test accuracy (%) of an attacker; chance is 50"
    steps = [s for s in (1, 10, 200) if s <= record.settings["budget"]]
    figure = _overview(found["rows"], found["identity"], steps, labels, 100.0, ("median", "mean"))
    figure.axes[1].set_xlim(40, 100)
    return rendered(figure, record, kind)


def _setting(row: Mapping[str, Any]) -> str:
    return f"{row['epochs']} epochs of {row['step']}" if row["epochs"] else "closed form"


def heat_maps(record: Record, kind: str = "png", protocol: str = "paper") -> bytes:
    """RIR (its logarithm) of every digit pair, one map a method, under both κ (paper, figure 2)."""
    import matplotlib
    import numpy as np
    from matplotlib.colors import TwoSlopeNorm

    found = record.figures["protocols"][protocol]
    rows = {row["name"]: row for row in found["rows"]}
    names = list(found["maps"])
    figure = canvas(2.3 * len(names) + 0.9, 5.6)
    axes = figure.subplots(2, len(names), squeeze=False)
    middle, total = math.log(LARGE), len(found["pairs"])
    colours = matplotlib.colormaps["RdBu"].with_extremes(bad="#d9d9d9")
    image = None
    for line, which in enumerate(("released", "honest")):
        for axis, name in zip(axes[line], names, strict=True):
            cells = np.array(
                [[np.nan if v is None else v for v in row] for row in found["maps"][name][which]]
            )
            norm = TwoSlopeNorm(middle, 0, 3 * middle)
            image = axis.imshow(cells, cmap=colours, norm=norm)
            count = rows[name]["successes"][which]
            won, lost = count["large"], count["pairs"] - count["large"]
            head = f"{rows[name]['label']}\n{_setting(rows[name])}\n" if line == 0 else ""
            none = total - count["pairs"]
            tail = f", {none} without θ" if none else ""
            axis.set_title(f"{head}{won} succeed, {lost} fail{tail}", fontsize=8)
            axis.set_xticks(range(10), [str(d) for d in range(10)], fontsize=6)
            axis.set_yticks(range(10), [str(d) for d in range(10)], fontsize=6)
        axes[line][0].set_ylabel(f"{which} κ\nprimary digit", fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("harmful digit", fontsize=8)
    bar = figure.colorbar(image, ax=axes.ravel().tolist(), shrink=0.7, extend="both")
    bar.set_label(f"log RIR (white: RIR = {LARGE:.0f}; blue: above)", fontsize=8)
    return rendered(figure, record, kind)


Draw = Callable[..., bytes]
FIGURES: dict[str, dict[str, Draw]] = {
    "house-prices": {
        "norm-ratio": norm_ratio,
        "path": path,
        "overview": house_prices_overview,
        "floor-and-ceiling": floor_and_ceiling,
    },
    "mnist": {"heat-maps": heat_maps, "overview": mnist_overview},
}
OTHERS["reproduce"] = lambda record: FIGURES[record.name]
