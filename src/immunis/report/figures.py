"""Figures, drawn from records alone: PNG to look at, PDF to print."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from immunis.core.records import Record
from immunis.core.releases import release
from immunis.core.shapes import CONTROL
from immunis.report import query, style
from immunis.report.format import defined, number
from immunis.report.query import ROLES, outlines, require_kinds
from immunis.report.runs import FINAL, NAME
from immunis.report.style import canvas, legend, line, mark, plain, rendered

Draw = Callable[..., bytes]
OTHERS: dict[str, Callable[[Record], dict[str, Draw]]] = {}  # by kind of record; paper adds its own
SHOWN = 6  # learning curves in one figure
MOST = 2.0  # the largest residual advantage that is drawn in its place
HISTORY = {
    "primary": "primary score",
    "probe": "best ridge probe, harmful",
    "probe_trained": "the same on training rows",
    "rho": "ρ on training rows",
}


def figures_of(record: Record) -> dict[str, Draw]:
    """Return the figures that a record holds the numbers for, by name.

    Raises:
        InputError: for a kind of record without figures.
    """
    if record.kind in OTHERS:
        return OTHERS[record.kind](record)
    if record.kind == "measure":
        return {"spectra": spectra}
    if record.kind == "demo":
        return {"overview": overview, "spectra": spectra, "norm_ratios": norm_ratios}
    require_kinds([record], ("measure", "audit", "immunize", "demo", *OTHERS), "has no figures")
    found: dict[str, Draw] = {}
    if record.kind == "audit":
        found = {"cost": cost, "scores": scores}
        if len(record.figures["models"]) > 1:
            found["advantage"] = advantage
        if curved(record):
            found["curves"] = curves
        if query.depths(record, record.settings["original"]):
            found["depths"] = depths
    elif record.figures["details"].get("history"):
        found["history"] = history
    return {**found, "spectra": spectra} if outlines(record) else found


def write_figures(paths: Sequence[str | Path], folder: str | Path) -> list[Path]:
    """Draw the figures of record files into a folder; return the paths.

    A figure's name begins with the name of its record's file, or of the folder where the file is
    called ``record.json`` (``record-final.json``).
    """
    records = {name: Record.load(path) for name, path in zip(_names(paths), paths, strict=True)}
    made = {
        f"{name}-{figure}.{kind}": draw(record, kind)
        for name, record in records.items()
        for figure, draw in figures_of(record).items()
        for kind in ("png", "pdf")
    }
    return release(folder, made)


def _names(paths: Sequence[str | Path]) -> list[str]:
    """Return a name for each record file, numbered where one comes twice."""
    found: list[str] = []
    for path in map(Path, paths):
        name, named = path.stem, path.name in (NAME, FINAL[0])
        name = path.absolute().parent.name + name.removeprefix("record") if named else name
        count = sum(other == name or other.startswith(f"{name}-") for other in found)
        found.append(f"{name}-{count + 1}" if name in found else name)
    return found


def _looks(record: Record, look: Any) -> dict[str, dict[str, Any]]:
    """Return the style and legend entry of every model and the control."""
    names = [*record.figures["models"], CONTROL]
    label = {name: plain(query.called(record, name)) for name in names}
    return {name: {**look(name, names), "label": label[name]} for name in names}


def _rows(axis: Any, labels: list[str]) -> None:
    """Give each label a horizontal row, the first on top."""
    axis.set_yticks(range(len(labels)), [plain(label) for label in labels], fontsize=8)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.grid(alpha=0.25)


def cost(record: Record, kind: str = "png") -> bytes:
    """Draw the best score of any attack on every model, by the cost at which it stops."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = canvas(7.0, 3.8)
    axis = figure.subplots()
    unit = query.telling_cost(record)
    looks = _looks(record, line)
    curves = {name: query.envelope(name, unit, record) for name in looks}
    last = max((curve[-1][0] for curve in curves.values() if curve), default=1.0)
    for name, curve in curves.items():
        if curve:
            places, heights = zip(*curve, (last, curve[-1][1]), strict=True)
            axis.step(places, [100 * y for y in heights], where="post", **looks[name])
    axis.axhline(100 * record.figures["chance"], color=style.PALE, linewidth=1, zorder=0)
    ylabel = "best test score (%); grey: chance"
    axis.set(xscale="log", xlabel=f"{query.UNITS[unit]} the attacker spends", ylabel=ylabel)
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.25)
    legend(figure, axis)
    return rendered(figure, record, kind)


def scores(record: Record, kind: str = "png") -> bytes:
    """Draw the test score of every attack on every model and the control."""
    attacks = list(record.figures["attacks"])
    figure = canvas(7.5, 1.0 + 0.24 * len(attacks))
    axis = figure.subplots()
    for name, look in _looks(record, mark).items():
        found = query.scores(record.figures["attacks"], name)
        axis.plot([100 * x for x in found.values()], [attacks.index(a) for a in found], **look)
    _rows(axis, attacks)
    axis.axvline(100 * record.figures["chance"], color=style.GREY, linestyle="--", linewidth=1)
    axis.set_xlabel("test score (%); dashed: chance")
    legend(figure, axis)
    return rendered(figure, record, kind)


def depths(record: Record, kind: str = "png") -> bytes:
    """Draw the best score at each stage of every model, of all probes, and after fine-tuning."""
    looks = _looks(record, mark)
    found = {name: query.depths(record, name) for name in looks}
    places = list(dict.fromkeys(at for scores in found.values() for at in scores))
    stages = [at for at in places if at not in query.BY_MEANS]
    figure = canvas(7.5, 3.4)
    axis = figure.subplots()
    for name, scores in found.items():
        look = looks[name]
        heights = [100 * scores.get(at, math.nan) for at in places]
        axis.plot(heights[: len(stages)], color=look["color"], linewidth=1.2)
        axis.plot(heights, **look)
    labels = [f"stage {number}" for number, _ in enumerate(stages, 1)]
    axis.set_xticks(range(len(places)), [*labels, *places[len(stages) :]], fontsize=9)
    axis.axhline(100 * record.figures["chance"], color=style.GREY, linestyle="--", linewidth=1)
    axis.set_ylabel("best test score (%); dashed: chance")
    axis.set_ylim(min(0.0, axis.get_ylim()[0]), 102)
    axis.grid(alpha=0.25)
    legend(figure, axis)
    return rendered(figure, record, kind)


def advantage(record: Record, kind: str = "png") -> bytes:
    """Draw the share of the original's help that each attack keeps, with its interval."""
    names, looks = query.defended(record), _looks(record, mark)
    attacks = list(record.figures["attacks"])
    figure = canvas(7.5, 1.0 + 0.32 * len(attacks))
    axis = figure.subplots()
    least, most = 0.0, 1.1
    for turn, name in enumerate(names):
        look = {**looks[name], "markersize": 4}
        for place, rows in enumerate(record.figures["attacks"].values()):
            kept = query.share(rows.get(name))
            if kept is None:
                continue
            y = place + 0.6 * ((turn + 0.5) / len(names) - 0.5)
            mean, *ends = (query.known(kept[end]) for end in ("mean", "low", "high"))
            low, high = ends if all(map(math.isfinite, ends)) else (mean, mean)
            mean, low, high = (max(-MOST, min(end, MOST)) for end in (mean, low, high))
            least, most = min(least, mean, low), max(most, mean, high)
            axis.plot([low, high], [y, y], color=look["color"], linewidth=1)
            beyond = {"marker": ">"} if mean >= MOST else {}
            axis.plot([mean], [y], **(look | beyond))
            look["label"] = None
    _rows(axis, attacks)
    axis.axvline(1.0, color=style.GREY, linestyle="--", linewidth=1)
    label = "residual advantage (arrows: above 2; no mark: not enough evidence); dashed: 1"
    axis.set(xlim=(least - 0.05, most + 0.05), xlabel=label)
    legend(figure, axis)
    return rendered(figure, record, kind)


def curved(record: Record) -> list[str]:
    """Return the attacks that learn in steps, highest score on the original first."""
    original, attacks = record.settings["original"], record.figures["attacks"]
    found = query.scores(attacks, original)
    steps = [attack for attack in found if len(attacks[attack][original]["curve"]) > 2]
    return sorted(steps, key=lambda attack: -found[attack])


def curves(record: Record, kind: str = "png") -> bytes:
    """Draw the learning curves of the six attacks that score highest on the original."""
    attacks, chosen = record.figures["attacks"], curved(record)[:SHOWN]
    across = min(3, len(chosen))
    height = math.ceil(len(chosen) / across)
    figure = canvas(2.0 + 2.5 * across, 2.6 * height)
    grid = figure.subplots(height, across, sharey=True, squeeze=False)
    for axis, attack in zip(grid.ravel(), chosen, strict=False):
        for name, look in _looks(record, line).items():
            points = attacks[attack].get(name, {}).get("curve", ())
            steps = [max(point["steps"], 1) for point in points]
            mean, low, high = ([100 * p[end] for p in points] for end in ("mean", "low", "high"))
            axis.plot(steps, mean, **look)
            axis.fill_between(steps, low, high, color=look["color"], alpha=0.12, linewidth=0)
        axis.set_title(plain(attack), fontsize=9)
        axis.set_xscale("log")
        axis.set_xlabel("steps", fontsize=8)
        axis.grid(alpha=0.25)
    for axis in grid.ravel()[len(chosen) :]:
        axis.set_axis_off()
    for row in grid:
        row[0].set_ylabel("test score (%)", fontsize=8)
    legend(figure, grid[0][0])
    return rendered(figure, record, kind)


def _panels(curves: Mapping[Any, dict[str, Any]], labels: tuple[str, str]) -> Any:
    """Return a figure with a panel for each task, and a line for each model's points."""
    figure = canvas()
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (role, by_model) in zip(axes, curves.items(), strict=True):
        for name, (label, places, values) in by_model.items():
            axis.plot(places, values, **{**line(name, list(by_model)), "label": plain(label)})
        axis.set_title(f"{role} task", fontsize=10)
        axis.set(xscale="log", yscale="log", xlabel=labels[0])
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
        axis.axvline(details.get("best_step", steps[-1]), color=style.GREY, linewidth=1, ls=":")
        axis.set_xlabel("training step (dotted: the one kept)")
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8)
    left.set_ylabel("score")
    left.set_ylim(bottom=min(0.0, *(row["rho"] for row in rows)))
    right.set(yscale="log", ylabel="condition number")
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
    ratios = [f["methods"][name]["rir"]["value"] for name in names]
    left.barh(
        [plain(name) for name in names],
        [math.nan if r is None else r for r in ratios],
        color=style.BLUE,
    )
    left.axvline(f["ceiling"], color=style.RED, linestyle="--", linewidth=1.2)
    left.set(xscale="log", xlabel="relative immunization ratio (dashed: its ceiling RIR*)")
    for place, found in enumerate(ratios):
        if found is None:
            left.text(left.get_xlim()[0], place, f" {defined(None)}", va="center", fontsize=7)
    reads = [f["methods"][name]["harmful_accuracy"] for name in names]
    bars = {
        f"{step} descent steps": [100 * read["gradient_descent"][str(step)] for read in reads]
        for step in record.settings["steps"]
    }
    bars["ridge"] = [100 * read["ridge"] for read in reads]
    for place, (label, values) in enumerate(bars.items()):
        places = [row + 0.3 - 0.2 * place for row in range(len(names))]
        right.barh(places, values, height=0.2, color=style.DEPTHS[place], label=label)
    right.set(xlim=(0, 100), xlabel="harmful test accuracy an attacker reaches (%)")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return rendered(figure, record, kind)
