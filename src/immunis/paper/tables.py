"""Tables of a reproduction, built from its record alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from statistics import fmean, median
from typing import Any

from immunis.core.records import Record
from immunis.paper.measures import ATTACKS, DESCENT, KINDS, reached
from immunis.paper.published import CONDITIONS, FACTORS, is_moved, printed
from immunis.paper.rows import ROWS
from immunis.report.format import number, percent
from immunis.report.markup import Table

Row = Mapping[str, Any]
Columns = dict[str, Callable[[Row], Any]]  # by head, what a cell shows of a row
VERDICTS: Columns = {"replicates": itemgetter("replicates"), "holds (eq. 1)": itemgetter("holds")}


def table(title: str, rows: Sequence[Row], columns: Columns) -> Table:
    """Return a table of one line a row; a cell that is no text is shown as a number."""
    cells = [[number(read(row)) for read in columns.values()] for row in rows]
    return Table(title, list(columns), cells)


def _part(record: Record, protocol: str = "paper") -> dict[str, Any]:
    """Return the rows, pairs and identity of a protocol; House Prices has one protocol and pair."""
    if record.name == "mnist":
        return record.figures["protocols"][protocol]
    return {**record.figures, "pairs": {"": record.figures["pair"]}}


def _method(record: Record) -> Columns:
    """Return the columns that name a row; only MNIST's rows differ in step size."""
    step: Columns = {"step": itemgetter("step")} if record.name == "mnist" else {}
    epochs: Columns = {"epochs": lambda row: row.get("epochs") or None}
    return {"method": itemgetter("label"), **step, **epochs}


def _mean_and_std(cell: Any) -> Sequence[float]:
    return (cell["mean"], cell["std"]) if isinstance(cell, Mapping) else cell


def spread_text(cell: Any, show: Callable[[float], str] = number) -> str | None:
    """Return mean ± deviation, of ours or as published; None where there is none."""
    if cell is None:
        return None
    mean, std = _mean_and_std(cell)
    return show(mean) if std != std else f"{show(mean)} ± {show(std)}"


def met(condition: str, lost: Callable[[Row], int] = itemgetter("failed")) -> Callable[[Row], Any]:
    """Return a reader of "n of m": the runs that meet a condition of Definition 3.1.

    A record without such counts has the median factor, over all runs, in their place.
    """

    def text(row: Row) -> str | None:
        if "definition" in row:
            return f"{row['definition'][condition]} of {row['runs'] - lost(row)}"
        return f"median {number(row['honest'][condition]['median'])}" if "honest" in row else None

    return text


def _figure(kind: str, factor: str) -> Callable[[Row], Any]:
    """Return a reader of one figure, mean ± deviation: ``published`` or ours under one κ.

    Where rounding moves a figure, its range is beside it.
    """

    def text(row: Row) -> Any:
        cell = (row.get(kind) or {}).get(factor)
        if cell is None:
            return "failed" if kind in KINDS and row["failed"] else None
        ends = [cell[end] for end in ("low", "high", "again")] if kind in KINDS else [1]
        return _ranged(spread_text(cell) or "", ends)

    return text


def _ranged(shown: str, ends: Sequence[float]) -> str:
    """Return a figure with its range, if rounding moves it."""
    if not is_moved(ends):
        return shown
    return f"{shown} (rounding: {number(min(ends))} to {number(max(ends))})"


def _ceiling(part: Mapping[str, Any]) -> float:
    """Return RIR*, mean over pairs: infinite as soon as one pair has free directions."""
    return fmean(pair["ceiling"] for pair in part["pairs"].values())


def _title(record: Record, what: str) -> str:
    house, seeds = record.name == "house-prices", record.settings["seeds"]
    name = "House Prices" if house else "MNIST, paper protocol"
    mean = "mean" if house else f"mean over {len(_part(record)['pairs'])} pairs"
    over = f"one seed{'' if house else f', {mean}'}" if seeds == 1 else f"{mean} ± std over seeds"
    return f"{name}: {what}, {over}"


def rir_table(record: Record) -> Table:
    """Return table 1 or 2 again: RIR with both κ, Definition 3.1 with the honest κ; verdicts."""
    part = _part(record)
    kinds = {"published": "published", "released κ": "released", "honest κ": "honest"}
    columns = _method(record) | {head: _figure(kind, "rir") for head, kind in kinds.items()}
    columns |= {"RIR*": lambda row: _ceiling(part)}
    columns |= {head: met(condition) for condition, head in CONDITIONS.items()} | VERDICTS
    return table(_title(record, "RIR of every method"), part["rows"], columns)


def factors_table(record: Record) -> Table:
    """Return both factors of RIR: harmful (i), primary (ii); published, released κ, honest κ."""
    found = {
        f"{FACTORS[factor]} {kind}": _figure(kind, factor)
        for factor in ("harmful", "primary")
        for kind in ("published", *KINDS)
    }
    found |= {head: met(condition) for condition, head in CONDITIONS.items()}
    title = _title(record, "both factors of RIR")
    return table(title, _part(record)["rows"], _method(record) | found)


def reasons_table(record: Record) -> Table:
    """Return both verdicts on every row that the paper has, with the reason."""
    rows = [row for row in _part(record)["rows"] if row["published"]]
    columns = VERDICTS | {"why": itemgetter("reason")}
    return table(f"{record.name}: verdicts and why", rows, _method(record) | columns)


def _attacked(record: Record, marks: Sequence[int], show: Callable[[Row], str]) -> Columns:
    """Return the columns of what attackers reach: descent by step, its cost, and ridge."""

    def at(step: int | None) -> Callable[[Row], Any]:
        return lambda row: (point := reached(row["attacks"], step)) and show(point)

    return {
        **{f"@{step}": at(step) for step in marks if step <= record.settings["budget"]},
        "cost ×": lambda row: row["attacks"].get(DESCENT, {}).get("multiplier"),
        "ridge": at(None),
    }


def r2_table(record: Record) -> Table:
    """Return what attackers reach on House Prices: R² of descent by step, its cost, and ridge."""
    title = (
        "House Prices: R² on SalePrice that attackers with rows of their own reach, "
        "median (lowest to highest) over seeds"
    )
    rows = [{"label": "identity", "attacks": record.figures["identity"]}, *record.figures["rows"]]
    return table(title, rows, _method(record) | _attacked(record, (1, 10, 100, 1000), _r2))


def _r2(point: Row) -> str:
    """Return the median, with the lowest and the highest where they differ."""
    values = [point[key] for key in ("median", "low", "high")]
    texts = [f"{value:.2f}" if value >= -1 else "< −1" for value in values]
    middle, low, high = (text.replace("-0.00", "0.00").replace("-", "−") for text in texts)
    return middle if middle == low == high else f"{middle} ({low} to {high})"


def floor_table(record: Record) -> Table:
    """Return both κ of the inputs, and of the same inputs in units ten times smaller."""
    rows = [{"task": task, **record.figures["pair"][task]} for task in ("primary", "harmful")]

    def floored(key: str) -> Callable[[Row], str]:
        return lambda row: _ranged(number(row[key]["median"]), [row[key]["low"], row[key]["high"]])

    columns: Columns = {
        "task": itemgetter("task"),
        "released κ": floored("released"),
        "… of 10 × the inputs": floored("released_tenfold"),
        "honest κ": itemgetter("honest"),
        "rank": itemgetter("rank"),
        "of": itemgetter("dimension"),
    }
    return table("House Prices: condition numbers of the inputs themselves", rows, columns)


def _median_rir(kind: str) -> Callable[[Row], Any]:
    return lambda row: row[kind]["rir"]["median"] if kind in row else None


MEDIANS = {"median RIR, released": _median_rir("released"), "honest": _median_rir("honest")}


def _moved(row: Row) -> str | None:
    return f"{row['moved']} of {row['runs'] - row['failed']} runs" if "moved" in row else None


def pairs_table(record: Record) -> Table:
    """Return how many pairs succeed, the median pair, and the pairs without any θ.

    A run is moved by rounding if its released RIR varies by more than a factor of 1.5.
    """
    part, said = _part(record), printed("mnist")["successes"]
    total = len(part["pairs"])
    rows = [row for row in part["rows"] if "successes" in row]
    columns: Columns = {
        **_method(record),
        "successes, published": lambda row: said.get(ROWS[row["method"]].said),
        "released κ ≥ 10": lambda row: row["successes"]["released"]["large"],
        "honest κ ≥ 10": lambda row: row["successes"]["honest"]["large"],
        **MEDIANS,
        f"moved by rounding ({record.settings['draws']} draws a run)": _moved,
        "without θ": lambda row: total - row["successes"]["released"]["pairs"],
    }
    title = f"MNIST, paper protocol: of {total} pairs, those with RIR of at least 10"
    return table(title, rows, columns)


def binary_table(record: Record) -> Table:
    """Return the binary protocol: RIR, RIR*, and the accuracy that attackers reach."""
    part = _part(record, "binary")
    identity = {
        "label": "identity",
        "attacks": part["identity"],
        "successes": {"released": {"pairs": len(part["pairs"])}},
        **{kind: {"rir": {"median": 1}} for kind in KINDS},
    }
    columns: Columns = {
        "method": itemgetter("label"),
        "pairs": lambda row: row["successes"]["released"]["pairs"] if "successes" in row else 0,
        **MEDIANS,
        "RIR*": lambda row: _ceiling(part),
        **_attacked(record, (1, 10, 100, 200), lambda point: percent(point["mean"])),
    }
    title = "MNIST, binary protocol: test accuracy (%) of attackers, mean over the pairs"
    return table(title, [identity, *part["rows"]], columns)


def path_table(record: Record) -> Table:
    """Return RIR of Algorithm 1 along the epochs at the table's own step size, over the pairs."""
    points, step = record.figures["path"]["points"], record.figures["path"]["step"]
    pairs = {(p, h) for p, h, *_ in points}
    rows = []
    for epochs in sorted({int(point[3]) for point in points}):
        found = [[p[i] for p in points if p[3] == epochs] for i in (4, 5)]
        each = [f(values) for values in found for f in (fmean, median, min, max)]
        rows.append([number(epochs), *map(number, each)])
    heads = [f"{kind} κ: {what}" for kind in KINDS for what in ("mean", "median", "min", "max")]
    title = f"MNIST: RIR of Algorithm 1 after n epochs of step {step}, over {len(pairs)} pairs"
    return Table(title, ["epochs", *heads], rows)


def flat_table(record: Record) -> Table:
    """Return every figure of the rows as plain numbers, for other programs.

    Besides both factors and RIR there are ``ceiling`` (RIR*), both verdicts, and for each attack
    what it reaches at the end and the multiple of its cost.
    """
    lines: list[list[str]] = []
    for protocol in record.figures.get("protocols", [""]):
        part = _part(record, protocol)
        for row in part["rows"]:
            found = {
                (kind, factor): _mean_and_std(cell)
                for kind in ("published", *KINDS)
                for factor, cell in (row.get(kind) or {}).items()
            }
            found["honest", "ceiling"] = [_ceiling(part)]
            for attack in ATTACKS:
                each = row["attacks"].get(attack, {})
                if score := each.get("score"):
                    found["", f"{attack} score"] = [score.get("median", score.get("mean"))]
                    found["", f"{attack} cost ×"] = [each["multiplier"]]
            texts = {key: [repr(float(v)) for v in values] for key, values in found.items()}
            if row["published"]:
                texts |= {("", name): ["", "", row[name]] for name in ("replicates", "holds")}
            name = [str(row.get(key) or "") for key in ("method", "step", "epochs")]
            for key, cells in texts.items():
                lines.append([record.name, protocol, *name, *key, *[*cells, "", ""][:3]])
    columns = ["experiment", "protocol", "method", "step", "epochs", "kappa", "figure"]
    return Table(record.name, [*columns, "value", "std", "text"], lines)


HOUSE = {"": rir_table, "attackers": r2_table, "reasons": reasons_table, "factors": factors_table}
MNIST = {"": rir_table, "binary": binary_table, "reasons": reasons_table, "pairs": pairs_table}
TABLES: dict[str, dict[str, Callable[[Record], Table]]] = {
    "house-prices": {**HOUSE, "floor": floor_table},
    "mnist": {**MNIST, "factors": factors_table, "path": path_table},
}


def tables_of(record: Record) -> list[Table]:
    """Return all tables for people of one reproduction, the main one first."""
    return [made(record) for made in TABLES[record.name].values()]
