"""Tables of a reproduction, built from its record alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from immunis.records import Record
from immunis.reproduce.judgement import published
from immunis.reproduce.methods import ROWS
from immunis.tables import Table, number, percent

KINDS = ("released", "honest")
FACTORS = {"harmful": "(i)", "primary": "(ii)", "rir": "RIR"}
BLANK = "–"


def _pm(cell: Mapping[str, Any] | Sequence[float] | None) -> str:
    """Mean ± deviation of a figure, published or measured."""
    if cell is None:
        return BLANK
    mean, std = (cell["mean"], cell["std"]) if isinstance(cell, Mapping) else cell
    return number(mean) if std != std else f"{number(mean)} ± {number(std)}"


def _epochs(row: Mapping[str, Any]) -> str:
    return number(row["epochs"]) if row.get("epochs") else BLANK


def _figure(row: Mapping[str, Any], kind: str, factor: str) -> str:
    if kind == "published":
        return _pm((row["published"] or {}).get(factor))
    return _pm(row[kind][factor]) if kind in row else "diverged" if row.get("diverged") else BLANK


def _ceiling(pairs: Sequence[Mapping[str, Any]]) -> str:
    """RIR* of the middle pair; where it is infinite, also what a ridge of 10⁻³ leaves of it."""
    top = median(pair["ceiling"] for pair in pairs)
    damped = median(pair["ridge_ceiling"] for pair in pairs)
    return number(top) if math.isfinite(top) else f"∞ (ridge: {number(damped)})"


def house_prices_table(record: Record) -> Table:
    """Table 1 again: RIR published, with the released and with the honest κ; and the verdict."""
    top = _ceiling([record.figures["pair"]])
    return Table(
        "House Prices: RIR of every method, mean ± std over the seeds",
        ["method", "epochs", "published", "released κ", "honest κ", "RIR*", "verdict"],
        [
            [
                row["label"], _epochs(row),
                *(_figure(row, kind, "rir") for kind in ("published", *KINDS)), top, row["verdict"],
            ]
            for row in record.figures["rows"]
        ],
    )  # fmt: skip


def house_prices_factors_table(record: Record) -> Table:
    """Both factors of RIR: harmful (i), primary (ii); published, released κ, honest κ."""
    heads = [f"{FACTORS[f]} {k}" for f in ("harmful", "primary") for k in ("published", *KINDS)]
    return Table(
        "House Prices: both factors of RIR, mean ± std over the seeds",
        ["method", "epochs", *heads],
        [
            [
                row["label"], _epochs(row),
                *(
                    _figure(row, kind, factor)
                    for factor in ("harmful", "primary")
                    for kind in ("published", *KINDS)
                ),
            ]
            for row in record.figures["rows"]
        ],
    )  # fmt: skip


def _at(attacks: Mapping[str, Any], step: int, form: Any) -> str:
    for steps, score in attacks.get("gd_line_search", {}).get("curve", []):
        if steps == step:
            return form(score)
    return BLANK


def house_prices_attack_table(record: Record) -> Table:
    """What the audit's attackers reach: R² of descent after some steps, its cost, and ridge."""
    steps = [s for s in (1, 10, 100, 1000) if s <= record.settings["budget"]]
    rows = [{"label": "identity", "attacks": record.figures["identity"]}, *record.figures["rows"]]
    table = []
    for row in rows:
        found = row["attacks"]
        descent, ridge = (found.get(name, {}) for name in ("gd_line_search", "ridge"))
        table.append(
            [
                row["label"], _epochs(row), *(_at(found, s, _r2) for s in steps),
                number(descent.get("multiplier")),
                _r2(ridge["score"]["median"]) if ridge else BLANK,
            ]
        )  # fmt: skip
    title = "House Prices: R² on SalePrice that attackers with rows of their own reach"
    return Table(title, ["method", "epochs", *(f"@{s}" for s in steps), "cost ×", "ridge"], table)


def _r2(score: float) -> str:
    return "< −1" if score < -1 else f"{score:.2f}".replace("-", "−")


def reasons_table(record: Record) -> Table:
    """The verdict of every row that the paper has, with the reason."""
    rows = record.figures["rows"] if "rows" in record.figures else _rows(record, "paper")
    return Table(
        f"{record.name}: verdicts and why",
        ["method", "epochs", "verdict", "why"],
        [
            [row["label"], _epochs(row), row["verdict"], row["reason"]]
            for row in rows
            if row["published"]
        ],
    )


def floor_table(record: Record) -> Table:
    """The noise floor: both κ of the inputs, and of the same inputs in units ten times smaller."""
    return Table(
        "House Prices: condition numbers of the inputs themselves",
        ["task", "released κ", "… of 10 × the inputs", "honest κ", "rank", "of"],
        [
            [
                task,
                *(number(side[key]) for key in ("released", "released_tenfold", "honest")),
                number(side["rank"]), number(side["dimension"]),
            ]
            for task, side in ((t, record.figures["pair"][t]) for t in ("primary", "harmful"))
        ],
    )  # fmt: skip


def _rows(record: Record, protocol: str) -> list[dict[str, Any]]:
    return record.figures["protocols"][protocol]["rows"]


def _pairs(record: Record, protocol: str) -> list[dict[str, Any]]:
    return list(record.figures["protocols"][protocol]["pairs"].values())


def mnist_table(record: Record, protocol: str = "paper") -> Table:
    """Table 2 again: RIR averaged over digit pairs, and the verdict."""
    pairs = _pairs(record, protocol)
    top = _ceiling(pairs)
    return Table(
        f"MNIST, {protocol} protocol: mean RIR over {len(pairs)} pairs, ± std over seeds",
        ["method", "published", "released κ", "honest κ", "RIR*", "verdict"],
        [
            [
                row["label"], *(_figure(row, kind, "rir") for kind in ("published", *KINDS)), top,
                row["verdict"],
            ]
            for row in _rows(record, protocol)
        ],
    )  # fmt: skip


def mnist_pairs_table(record: Record) -> Table:
    """How many pairs succeed, the median pair, and the pairs for which a method found no θ."""
    said, total = published("mnist")["successes"], len(_pairs(record, "paper"))
    rows = []
    for row in _rows(record, "paper"):
        if "successes" in row:
            counts = [row["successes"][kind] for kind in KINDS]
            rows.append(
                [
                    row["label"], str(said.get(ROWS[row["method"]].said, BLANK)),
                    *(str(count["large"]) for count in counts),
                    *(number(row[kind]["rir"]["median"]) for kind in KINDS),
                    str(total - counts[0]["pairs"]),
                ]
            )  # fmt: skip
    columns = ["pairs ≥ 10, published", "released κ", "honest κ", "median RIR, released", "honest"]
    title = f"MNIST, paper protocol: of {total} pairs, those with RIR of at least 10"
    return Table(title, ["method", *columns, "without θ"], rows)


def mnist_binary_table(record: Record) -> Table:
    """The binary protocol: RIR, and the accuracy that attackers reach."""
    found = record.figures["protocols"]["binary"]
    steps = [s for s in (1, 10, 100, 200) if s <= record.settings["budget"]]
    table = []
    for row in ({"label": "identity", "attacks": found["identity"]}, *found["rows"]):
        attacks = row["attacks"]
        descent, ridge = (attacks.get(name, {}) for name in ("gd_line_search", "ridge"))
        table.append(
            [
                row["label"],
                *(number(row[kind]["rir"]["median"]) if kind in row else "1" for kind in KINDS),
                *(_at(attacks, s, percent) for s in steps),
                number(descent.get("multiplier")),
                percent(ridge["score"]) if ridge else BLANK,
            ]
        )
    title = f"MNIST, binary protocol: test accuracy (%) of attackers, mean over {len(_pairs(record, 'binary'))} pairs"  # noqa: E501
    columns = ["median RIR, released", "honest", *(f"@{s}" for s in steps), "cost ×", "ridge"]
    return Table(title, ["method", *columns], table)


def mnist_factors_table(record: Record) -> Table:
    """Both factors of RIR in the paper's protocol."""
    heads = [f"{FACTORS[f]} {k}" for f in ("harmful", "primary") for k in ("published", *KINDS)]
    return Table(
        "MNIST, paper protocol: both factors of RIR, mean over pairs ± std over seeds",
        ["method", *heads],
        [
            [
                row["label"],
                *(
                    _figure(row, kind, factor)
                    for factor in ("harmful", "primary")
                    for kind in ("published", *KINDS)
                ),
            ]
            for row in _rows(record, "paper")
        ],
    )


def mnist_path_table(record: Record) -> Table:
    """RIR of Algorithm 1 (released κ) along the epochs, on the pairs that ran to the end."""
    paths = record.figures["path"]["pairs"]
    epochs = sorted({int(point[0]) for path in paths.values() for point in path})
    return Table(
        f"MNIST: RIR of Algorithm 1 (released κ) after n epochs of step {record.figures['path']['step']}",  # noqa: E501
        ["pair (primary, harmful)", *map(str, epochs)],
        [
            [
                pair.replace(" ", ", "),
                *(number({int(p[0]): p[1] for p in path}.get(e)) for e in epochs),
            ]
            for pair, path in paths.items()
        ],
    )


def flat_table(record: Record) -> Table:
    """Every figure of the rows as plain numbers, for other programs."""
    protocols = record.figures.get("protocols") or {"": {"rows": record.figures["rows"]}}
    rows = []
    for protocol, found in protocols.items():
        for row in found["rows"]:
            for kind in ("published", *KINDS):
                for factor in FACTORS:
                    cell = (row.get(kind) or {}).get(factor)
                    if cell is None:
                        continue
                    mean, std = (cell["mean"], cell["std"]) if isinstance(cell, Mapping) else cell
                    name = [record.name, protocol, row["method"], str(row.get("epochs") or "")]
                    rows.append([*name, kind, factor, repr(float(mean)), repr(float(std))])
    columns = ["experiment", "protocol", "method", "epochs", "kappa", "factor", "mean", "std"]
    return Table(record.name, columns, rows)


def tables(record: Record) -> list[Table]:
    """All tables for people of one reproduction, the main one first."""
    if record.name == "mnist":
        return [
            mnist_table(record), mnist_binary_table(record), reasons_table(record),
            mnist_pairs_table(record), mnist_factors_table(record), mnist_path_table(record),
        ]  # fmt: skip
    return [
        house_prices_table(record), house_prices_attack_table(record), reasons_table(record),
        house_prices_factors_table(record), floor_table(record),
    ]  # fmt: skip
