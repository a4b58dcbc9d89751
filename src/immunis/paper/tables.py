"""Tables of a reproduction, built from its record alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from immunis.core.records import Record
from immunis.paper.measures import ATTACKS, CLOSED_FORM, DESCENT, KINDS
from immunis.paper.published import FACTORS, printed
from immunis.paper.rows import ROWS
from immunis.report.format import Table, number, percent

BLANK = "–"
Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]  # a head, and the text of a row's cell
VERDICT: Column = ("verdict", lambda row: row["verdict"])


def _table(title: str, rows: Sequence[Row], *columns: Column) -> Table:
    return Table(
        title, [head for head, _ in columns], [[c(row) for _, c in columns] for row in rows]
    )


def _part(record: Record, protocol: str = "paper") -> dict[str, Any]:
    """Return the rows, pairs and identity of a protocol; House Prices has one protocol and pair."""
    if record.name == "mnist":
        return record.figures["protocols"][protocol]
    return {**record.figures, "pairs": {"": record.figures["pair"]}}


def _method(record: Record) -> list[Column]:
    """Return the columns that name a row: method, step size where rows differ in it, epochs."""
    step: Column = ("step", lambda row: number(row["step"]))
    epochs: Column = ("epochs", lambda row: number(row.get("epochs") or None))
    return [
        ("method", lambda row: row["label"]),
        *([step] if record.name == "mnist" else []),
        epochs,
    ]


def _figure(kind: str, factor: str, head: str) -> Column:
    """Return the column of a figure, mean ± deviation: ``published`` or ours under one κ."""

    def text(row: Row) -> str:
        cell = (row.get(kind) or {}).get(factor)
        if cell is None:
            return "diverged" if kind in KINDS and row.get("diverged") else BLANK
        mean, std = (cell["mean"], cell["std"]) if isinstance(cell, Mapping) else cell
        return number(mean) if std != std else f"{number(mean)} ± {number(std)}"

    return head, text


def _ceiling(part: Mapping[str, Any]) -> float:
    """Return RIR*, mean over pairs: infinite as soon as one pair has free directions."""
    return fmean(pair["ceiling"] for pair in part["pairs"].values())


def _title(record: Record, what: str) -> str:
    if record.name == "house-prices":
        return f"House Prices: {what}, mean ± std over seeds"
    pairs = len(_part(record)["pairs"])
    return f"MNIST, paper protocol: {what}, mean over {pairs} pairs ± std over seeds"


def rir_table(record: Record) -> Table:
    """Return table 1 or 2 again: RIR published, with the released and the honest κ; the verdict."""
    part = _part(record)
    top = number(_ceiling(part))
    heads = {"published": "published", "released": "released κ", "honest": "honest κ"}
    found = [_figure(kind, "rir", head) for kind, head in heads.items()]
    columns = [*_method(record), *found, ("RIR*", lambda row: top), VERDICT]
    return _table(_title(record, "RIR of every method"), part["rows"], *columns)


def factors_table(record: Record) -> Table:
    """Return both factors of RIR: harmful (i), primary (ii); published, released κ, honest κ."""
    found = [
        _figure(kind, factor, f"{FACTORS[factor]} {kind}")
        for factor in ("harmful", "primary")
        for kind in ("published", *KINDS)
    ]
    rows = _part(record)["rows"]
    return _table(_title(record, "both factors of RIR"), rows, *_method(record), *found)


def reasons_table(record: Record) -> Table:
    """Return the verdict on every row that the paper has, with the reason."""
    rows = [row for row in _part(record)["rows"] if row["published"]]
    why: Column = ("why", lambda row: row["reason"])
    return _table(f"{record.name}: verdicts and why", rows, *_method(record), VERDICT, why)


def _attacked(
    record: Record, protocol: str, marks: Sequence[int], show: Callable[[Mapping[str, float]], str]
) -> tuple[list[Row], list[Column]]:
    """Return the rows, identity first, and columns of what attackers reach."""
    part = _part(record, protocol)

    def descent(step: int) -> Column:
        def text(row: Row) -> str:
            points = row["attacks"].get(DESCENT, {}).get("curve", [])
            return next((show(point) for point in points if point["steps"] == step), BLANK)

        return f"@{step}", text

    def ridge(row: Row) -> str:
        score = row["attacks"].get(CLOSED_FORM, {}).get("score")
        return BLANK if score is None else show(score)

    steps = [descent(step) for step in marks if step <= record.settings["budget"]]
    cost: Column = ("cost ×", lambda row: number(row["attacks"].get(DESCENT, {}).get("multiplier")))
    identity = {"label": "identity", "attacks": part["identity"]}
    return [identity, *part["rows"]], [*steps, cost, ("ridge", ridge)]


def house_prices_attack_table(record: Record) -> Table:
    """Return what attackers reach on House Prices: R² of descent by step, its cost, and ridge."""
    title = (
        "House Prices: R² on SalePrice that attackers with rows of their own reach, "
        "median (lowest to highest) over seeds"
    )
    rows, columns = _attacked(record, "", (1, 10, 100, 1000), _r2)
    return _table(title, rows, *_method(record), *columns)


def _r2(reached: Mapping[str, float]) -> str:
    """Return the median, with the lowest and the highest where they differ."""
    middle, low, high = (
        "< −1"
        if reached[key] < -1
        else f"{reached[key]:.2f}".replace("-0.00", "0.00").replace("-", "−")
        for key in ("median", "low", "high")
    )
    return middle if middle == low == high else f"{middle} ({low} to {high})"


def floor_table(record: Record) -> Table:
    """Return both κ of the inputs, and of the same inputs in units ten times smaller."""
    rows = [{"task": task, **record.figures["pair"][task]} for task in ("primary", "harmful")]
    heads = {
        "released": "released κ",
        "released_tenfold": "… of 10 × the inputs",
        "honest": "honest κ",
        "rank": "rank",
        "dimension": "of",
    }
    columns = [(head, lambda row, key=key: number(row[key])) for key, head in heads.items()]
    title = "House Prices: condition numbers of the inputs themselves"
    return _table(title, rows, ("task", lambda row: row["task"]), *columns)


def _median_rir(kind: str, head: str) -> Column:
    return head, lambda row: number(row[kind]["rir"]["median"]) if kind in row else BLANK


MEDIANS = [_median_rir("released", "median RIR, released"), _median_rir("honest", "honest")]


def mnist_pairs_table(record: Record) -> Table:
    """Return how many pairs succeed, the median pair, and the pairs without any θ."""
    part, said = _part(record), printed("mnist")["successes"]
    total = len(part["pairs"])
    rows = [row for row in part["rows"] if "successes" in row]
    columns: list[Column] = [
        ("successes, published", lambda row: str(said.get(ROWS[row["method"]].said, BLANK))),
        ("released κ ≥ 10", lambda row: str(row["successes"]["released"]["large"])),
        ("honest κ ≥ 10", lambda row: str(row["successes"]["honest"]["large"])),
        *MEDIANS,
        ("without θ", lambda row: str(total - row["successes"]["released"]["pairs"])),
    ]
    title = f"MNIST, paper protocol: of {total} pairs, those with RIR of at least 10"
    return _table(title, rows, *_method(record), *columns)


def mnist_binary_table(record: Record) -> Table:
    """Return the binary protocol: RIR, RIR*, and the accuracy that attackers reach."""
    part = _part(record, "binary")
    top, total = number(_ceiling(part)), len(part["pairs"])
    (identity, *rows), attacked = _attacked(
        record, "binary", (1, 10, 100, 200), lambda reached: percent(reached["mean"])
    )
    one = {kind: {"rir": {"median": 1}} for kind in KINDS}
    identity = {**identity, **one, "successes": {"released": {"pairs": total}}}
    columns: list[Column] = [
        ("method", lambda row: row["label"]),
        (
            "pairs",
            lambda row: str(row["successes"]["released"]["pairs"] if "successes" in row else 0),
        ),
        *MEDIANS,
        ("RIR*", lambda row: top),
    ]
    title = "MNIST, binary protocol: test accuracy (%) of attackers, mean over the pairs"
    return _table(title, [identity, *rows], *columns, *attacked)


def mnist_path_table(record: Record) -> Table:
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

    Besides both factors and RIR there are ``ceiling`` (RIR*), the verdict, and for each attack
    what it reaches at the end and the multiple of its cost.
    """
    rows: list[list[str]] = []
    for protocol in record.figures.get("protocols", [""]):
        part = _part(record, protocol)
        for row in part["rows"]:
            found: list[tuple[str, str, Sequence[float], str]] = []  # κ, figure, values, text
            for kind in ("published", *KINDS):
                for factor, cell in (row.get(kind) or {}).items():
                    pair = [cell["mean"], cell["std"]] if isinstance(cell, Mapping) else cell
                    found.append((kind, factor, pair, ""))
            found.append(("honest", "ceiling", [_ceiling(part)], ""))
            for attack in ATTACKS:
                if "score" in row["attacks"].get(attack, {}):
                    score, cost = (row["attacks"][attack][k] for k in ("score", "multiplier"))
                    middle = score["median"] if "median" in score else score["mean"]
                    found.append(("", f"{attack} score", [middle], ""))
                    found.append(("", f"{attack} cost ×", [cost], ""))
            if row["published"]:
                found.append(("", "verdict", [], row["verdict"]))
            name = [record.name, protocol, row["method"]]
            name += [str(row.get(key) or "") for key in ("step", "epochs")]
            for kind, figure, values, text in found:
                cells = [*(repr(float(value)) for value in values), "", ""]
                rows.append([*name, kind, figure, *cells[:2], text])
    columns = ["experiment", "protocol", "method", "step", "epochs", "kappa", "figure"]
    return Table(record.name, [*columns, "value", "std", "text"], rows)


TABLES: dict[str, dict[str, Callable[[Record], Table]]] = {
    "house-prices": {
        "": rir_table,
        "attackers": house_prices_attack_table,
        "reasons": reasons_table,
        "factors": factors_table,
        "floor": floor_table,
    },
    "mnist": {
        "": rir_table,
        "binary": mnist_binary_table,
        "reasons": reasons_table,
        "pairs": mnist_pairs_table,
        "factors": factors_table,
        "path": mnist_path_table,
    },
}


def tables_of(record: Record) -> list[Table]:
    """Return all tables for people of one reproduction, the main one first."""
    return [made(record) for made in TABLES[record.name].values()]
