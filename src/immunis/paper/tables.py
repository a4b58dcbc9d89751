"""Tables of a reproduction, built from its record alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from immunis.core.records import Record
from immunis.paper.attackers import ATTACKS, CLOSED_FORM, DESCENT
from immunis.paper.judgement import FACTORS, KINDS, published
from immunis.paper.methods import ROWS
from immunis.report.format import Table, number, percent

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


def _ceiling(pairs: Sequence[Mapping[str, Any]]) -> float:
    """RIR*, mean over pairs: infinite as soon as one pair has free directions."""
    return fmean(pair["ceiling"] for pair in pairs)


def house_prices_table(record: Record) -> Table:
    """Table 1 again: RIR published, with the released and with the honest κ; and the verdict."""
    top = number(_ceiling([record.figures["pair"]]))
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


def _reach(attacks: Mapping[str, Any], step: int | None) -> Mapping[str, float] | None:
    """What descent has reached after a step, or (None) what ridge regression reaches."""
    if step is None:
        return attacks.get(CLOSED_FORM, {}).get("score")
    points = attacks.get(DESCENT, {}).get("curve", [])
    return next((point for point in points if point["steps"] == step), None)


def house_prices_attack_table(record: Record) -> Table:
    """What the audit's attackers reach: R² of descent after some steps, its cost, and ridge."""
    steps = [s for s in (1, 10, 100, 1000) if s <= record.settings["budget"]]
    rows = [{"label": "identity", "attacks": record.figures["identity"]}, *record.figures["rows"]]
    return Table(
        "House Prices: R² on SalePrice that attackers with rows of their own reach, "
        "median (lowest to highest) over the seeds",
        ["method", "epochs", *(f"@{s}" for s in steps), "cost ×", "ridge"],
        [
            [
                row["label"], _epochs(row), *(_r2(_reach(row["attacks"], s)) for s in steps),
                number(row["attacks"].get(DESCENT, {}).get("multiplier")),
                _r2(_reach(row["attacks"], None)),
            ]
            for row in rows
        ],
    )  # fmt: skip


def _r2(reached: Mapping[str, float] | None) -> str:
    """Median, with the lowest and the highest where they differ."""
    if reached is None:
        return BLANK
    middle, *ends = (
        "< −1"
        if reached[k] < -1
        else f"{reached[k]:.2f}".replace("-0.00", "0.00").replace("-", "−")
        for k in ("median", "low", "high")
    )
    return middle if set(ends) == {middle} else f"{middle} ({ends[0]} to {ends[1]})"


def _setting_heads(record: Record) -> list[str]:
    return ["step", "epochs"] if record.name == "mnist" else ["epochs"]


def _setting(row: Mapping[str, Any]) -> list[str]:
    """Step size, where rows differ in it, and epochs."""
    return [number(row["step"]), _epochs(row)] if "step" in row else [_epochs(row)]


def reasons_table(record: Record) -> Table:
    """The verdict of every row that the paper has, with the reason."""
    rows = record.figures["rows"] if "rows" in record.figures else _rows(record, "paper")
    return Table(
        f"{record.name}: verdicts and why",
        ["method", *_setting_heads(record), "verdict", "why"],
        [
            [row["label"], *_setting(row), row["verdict"], row["reason"]]
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
    top = number(_ceiling(pairs))
    return Table(
        f"MNIST, {protocol} protocol: mean RIR over {len(pairs)} pairs, ± std over seeds",
        ["method", "step", "epochs", "published", "released κ", "honest κ", "RIR*", "verdict"],
        [
            [
                row["label"], *_setting(row),
                *(_figure(row, kind, "rir") for kind in ("published", *KINDS)), top, row["verdict"],
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
                    row["label"], *_setting(row),
                    str(said.get(ROWS[row["method"]].said, BLANK)),
                    *(str(count["large"]) for count in counts),
                    *(number(row[kind]["rir"]["median"]) for kind in KINDS),
                    str(total - counts[0]["pairs"]),
                ]
            )  # fmt: skip
    columns = ["successes, published", "released κ ≥ 10", "honest κ ≥ 10"]
    columns += ["median RIR, released", "honest", "without θ"]
    title = f"MNIST, paper protocol: of {total} pairs, those with RIR of at least 10"
    return Table(title, ["method", "step", "epochs", *columns], rows)


def mnist_binary_table(record: Record) -> Table:
    """The binary protocol: RIR, RIR*, and the accuracy that attackers reach."""
    found = record.figures["protocols"]["binary"]
    steps = [s for s in (1, 10, 100, 200) if s <= record.settings["budget"]]
    top, total = number(_ceiling(_pairs(record, "binary"))), len(_pairs(record, "binary"))
    table = []
    for row in ({"label": "identity", "attacks": found["identity"]}, *found["rows"]):
        attacks, here = row["attacks"], total
        rir = ["1", "1"]
        if "method" in row:
            rir = [number(row[k]["rir"]["median"]) if k in row else BLANK for k in KINDS]
            here = row["successes"]["released"]["pairs"] if "successes" in row else 0
        table.append(
            [
                row["label"], str(here), *rir, top,
                *(_accuracy(_reach(attacks, s)) for s in steps),
                number(attacks.get(DESCENT, {}).get("multiplier")),
                _accuracy(_reach(attacks, None)),
            ]
        )  # fmt: skip
    columns = ["pairs", "median RIR, released", "honest", "RIR*", *(f"@{s}" for s in steps)]
    title = "MNIST, binary protocol: test accuracy (%) of attackers, mean over the pairs"
    return Table(title, ["method", *columns, "cost ×", "ridge"], table)


def _accuracy(reached: Mapping[str, float] | None) -> str:
    return BLANK if reached is None else percent(reached["mean"])


def mnist_factors_table(record: Record) -> Table:
    """Both factors of RIR in the paper's protocol."""
    heads = [f"{FACTORS[f]} {k}" for f in ("harmful", "primary") for k in ("published", *KINDS)]
    return Table(
        "MNIST, paper protocol: both factors of RIR, mean over pairs ± std over seeds",
        ["method", "step", "epochs", *heads],
        [
            [
                row["label"], *_setting(row),
                *(
                    _figure(row, kind, factor)
                    for factor in ("harmful", "primary")
                    for kind in ("published", *KINDS)
                ),
            ]
            for row in _rows(record, "paper")
        ],
    )  # fmt: skip


def mnist_path_table(record: Record) -> Table:
    """RIR of Algorithm 1 along the epochs at the table's own step size, over the pairs."""
    points, step = record.figures["path"]["points"], record.figures["path"]["step"]
    pairs = {(int(p), int(h)) for p, h, *_ in points}
    rows = []
    for epochs in sorted({int(point[3]) for point in points}):
        found = [[p[i] for p in points if p[3] == epochs] for i in (4, 5)]
        each = [f(values) for values in found for f in (fmean, median, min, max)]
        rows.append([number(epochs), *map(number, each)])
    heads = [f"{kind} κ: {what}" for kind in KINDS for what in ("mean", "median", "min", "max")]
    title = f"MNIST: RIR of Algorithm 1 after n epochs of step {step}, over {len(pairs)} pairs"
    return Table(title, ["epochs", *heads], rows)


def flat_table(record: Record) -> Table:
    """Every figure of the rows as plain numbers, for other programs.

    Besides both factors and RIR there are ``ceiling`` (RIR*), the verdict, and for each attack
    what it reaches at the end and the multiple of its cost.
    """
    protocols = record.figures.get("protocols") or {
        "": {"rows": record.figures["rows"], "pairs": {"": record.figures["pair"]}}
    }
    rows = []
    for protocol, found in protocols.items():
        ceiling = _ceiling(list(found["pairs"].values()))
        for row in found["rows"]:
            name = [record.name, protocol, row["method"]]
            name += [str(row.get(k) or "") for k in ("step", "epochs")]
            for kind in ("published", *KINDS):
                for factor in FACTORS:
                    cell = (row.get(kind) or {}).get(factor)
                    if cell is not None:
                        pair = [cell["mean"], cell["std"]] if isinstance(cell, Mapping) else cell
                        rows.append([*name, kind, factor, *(repr(float(v)) for v in pair), ""])
            rows.append([*name, "honest", "ceiling", repr(ceiling), "", ""])
            for attack in ATTACKS:
                score = row["attacks"].get(attack, {}).get("score")
                if score is not None:
                    values = [score[k] for k in ("median", "mean") if k in score]
                    cost = row["attacks"][attack]["multiplier"]
                    rows.append([*name, "", f"{attack} score", repr(float(values[0])), "", ""])
                    rows.append([*name, "", f"{attack} cost ×", repr(float(cost)), "", ""])
            if row["published"]:
                rows.append([*name, "", "verdict", "", "", row["verdict"]])
    columns = ["experiment", "protocol", "method", "step", "epochs", "kappa", "figure"]
    return Table(record.name, [*columns, "value", "std", "text"], rows)


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
