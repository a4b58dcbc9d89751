"""Tables and the figure of the deep experiment, built from its record alone."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from immunis.core.records import Record
from immunis.paper.deep import STAND_IN
from immunis.paper.figures import FIGURES
from immunis.paper.published import CONDITIONS, FACTORS
from immunis.paper.tables import TABLES, Columns, Row, met, spread_text, table
from immunis.report import style
from immunis.report.format import defined, number, percent
from immunis.report.markup import Table
from immunis.report.style import canvas, legend, rendered

HEADS = FACTORS | {"rir": "RIR_θ₀"}
EPOCHS, TICKS = (1, 5, 20), (1, 2, 5, 10, 20, 50, 100)  # of probing, to show


def _title(record: Record, what: str) -> str:
    settings = record.settings
    said = [STAND_IN] if settings["stand_in"] else []
    if settings["steps"] is not None:
        said.append(f"a rehearsal of {settings['steps']} steps")
    name = settings["recipe_name"] + (f" ({'; '.join(said)})" if said else "")
    seeds = settings["seeds"]
    return f"{name}: {what}, {f'mean ± std over {seeds} seeds' if seeds > 1 else 'one seed'}"


def _table(record: Record, what: str, columns: Columns) -> Table:
    heads: Columns = {"method": _label, "training": lambda row: row["training"] or "–"}
    return table(_title(record, what), record.figures["rows"], heads | columns)


def _label(row: Row) -> str:
    lost = f" ({len(row['failed'])} of {row['runs']} runs diverged)" if row["failed"] else ""
    return row["label"] + lost


def _ours(kind: str, factor: str) -> Callable[[Row], Any]:
    return lambda row: spread_text(row[kind][factor], defined) if kind in row else None


def _published(figure: str) -> Callable[[Row], Any]:
    return lambda row: spread_text((row["published"] or {}).get(figure))


def ratios_table(record: Record) -> Table:
    """Return table 3 again: factors and RIR_θ₀ by groups and the released κ; primary accuracy."""
    columns: Columns = {}
    for factor in FACTORS:
        columns[f"{HEADS[factor]} published"] = _published(factor)
        columns[HEADS[factor]] = _ours("groups", factor)
    initial, printed = number(record.figures["initial"]), _published("accuracy")
    columns["accuracy (%) published"] = lambda row: printed(row) if row["training"] else initial
    columns["accuracy (%)"] = lambda row: spread_text(row.get("accuracy"), percent)
    columns["verdict"] = itemgetter("verdict")
    what = "RIR_θ₀ with the released κ of {groups} groups of {group} rows".format(**record.settings)
    return _table(record, what, columns)


def full_table(record: Record) -> Table:
    """Return factors and RIR_θ₀ with κ of eq. 1 over all rows, Definition 3.1, and ranks."""

    def rank(role: str) -> Callable[[Row], str | None]:
        def text(row: Row) -> str:
            low, high = (row["ranks"][role][end] for end in ("low", "high"))
            return number(low) if low == high else f"{number(low)} to {number(high)}"

        return lambda row: text(row) if "ranks" in row else None

    columns: Columns = {HEADS[factor]: _ours("full", factor) for factor in FACTORS}
    for condition, head in {**CONDITIONS, "score": "3.1 (c)"}.items():
        columns[head] = met(condition, lambda row: len(row["failed"]))
    for role, of in record.figures["spectra"].items():
        columns[f"rank, {role} (of {of['dimension']}, {of['samples']:,} rows)"] = rank(role)
    return _table(record, "RIR_θ₀ with κ as the paper defines it (eq. 1)", columns)


def probe_table(record: Record) -> Table:
    """Return the attacker's test accuracy after some epochs of linear probing, and of ridge."""

    def at(epochs: int) -> Callable[[Row], str]:
        def text(row: Row) -> str:
            points = [p for p in row.get("curve", []) if p["epochs"] <= epochs * 1.05]
            return percent(points[-1]["mean"]) if points else "–"

        return text

    columns: Columns = {f"@{n}": at(n) for n in EPOCHS if n <= record.settings["epochs"]}
    columns["ridge"] = lambda row: spread_text(row.get("ridge"), percent)
    what = "test accuracy (%) of linear probing on the harmful task after n epochs"
    return _table(record, what, columns)


def flat_table(record: Record) -> Table:
    """Return every figure of the rows as plain numbers, for other programs."""
    lines: list[list[str]] = []
    for row in record.figures["rows"]:
        name = ["deep", record.settings["recipe_name"], row["method"], row["training"]]
        cells = [("groups", factor, cell) for factor, cell in row.get("groups", {}).items()]
        cells += [("full", factor, cell) for factor, cell in row.get("full", {}).items()]
        cells += [("", key, row[key]) for key in ("accuracy", "ridge") if key in row]
        lines += [[*name, k, f, repr(c["mean"]), repr(c["std"]), ""] for k, f, c in cells]
        for figure, (mean, std) in (row["published"] or {}).items():
            lines.append([*name, "published", figure, repr(mean), repr(std), ""])
        for point in row.get("curve", []):
            at = f"sgd after {point['epochs']:.4g} epochs"
            lines.append([*name, "", at, repr(point["mean"]), "", ""])
        lines.append([*name, "", "verdict", "", "", row["verdict"]])
    columns = ["experiment", "recipe", "method", "training", "kappa", "figure"]
    return Table("deep", [*columns, "value", "std", "text"], lines)


def accuracy(record: Record, kind: str = "png") -> bytes:
    """Draw test accuracy against epochs of linear probing (paper, figure 4)."""
    figure = canvas(8.5, 4.2)
    axis = figure.subplots()
    rows = {f"{r['label']}, {r['training']}".strip(", "): r for r in record.figures["rows"]}
    for name, row in rows.items():
        points = row.get("curve", [])
        epochs = [point["epochs"] for point in points]
        low, mean, high = ([100 * p[end] for p in points] for end in ("low", "mean", "high"))
        look = style.line(name, list(rows))
        axis.plot(epochs, mean, **look)
        axis.fill_between(epochs, low, high, color=look["color"], alpha=0.15, linewidth=0)
    axis.set(xscale="log", xlabel="epochs of linear probing (SGD)", ylabel="test accuracy (%)")
    ticks = [n for n in TICKS if n <= record.settings["epochs"]]
    axis.set_xticks(ticks, map(str, ticks))
    axis.minorticks_off()
    axis.set_title(_title(record, "harmful task"), fontsize=9)
    axis.grid(alpha=0.25)
    legend(figure, axis)
    return rendered(figure, record, kind)


TABLES["deep"] = {"": ratios_table, "full": full_table, "probe": probe_table}
FIGURES["deep"] = {"accuracy": accuracy}
