"""Tables that the documentation alone shows: of benchmarks, and of an audit in brief."""

from __future__ import annotations

from immunis.core.controls import CONTROL
from immunis.core.records import Record
from immunis.report.format import Table, number, percent
from immunis.report.tables import audit_table

BRIEF = ("ridge", "logistic", "mlp", "knn", "earlier_layer", "finetune_all")


def brief_table(record: Record) -> Table:
    """One row a model: primary score, RIR, and what the most telling attacks read."""
    whole = audit_table(record)
    read = {row[0]: row[1:] for row in whole.rows if row[0] in BRIEF}
    rows = []
    for place, name in enumerate([*record.figures["models"], CONTROL]):
        row = record.figures["models"].get(name)
        known = ["–", "–"] if row is None else [percent(row["primary"]), number(row["rir"])]
        rows.append([whole.columns[place + 1], *known, *(cells[place] for cells in read.values())])
    return Table(record.name, ["model", "primary", "RIR", *read], rows)


def bench_table(record: Record) -> Table:
    """One row a benchmark: how many times as fast as its baseline, and the target."""
    return Table(
        record.name,
        ["what", "times as fast", "target"],
        [
            [row["what"], number(row["ratio"]), number(row["target"])]
            for row in record.figures["ratios"].values()
        ],
    )


def load_table(record: Record) -> Table:
    """One row a figure of memory or time under load, and its bound."""
    return Table(
        record.name,
        ["what", "figure", "wanted"],
        [
            [row["what"], number(row["figure"]), f"{row['bound']} {number(row['target'])}"]
            for row in record.figures["rows"].values()
        ],
    )


def step_table(record: Record) -> Table:
    """What a regularizer adds to a training step, in milliseconds and as a ratio."""
    rows = []
    for network, found in record.figures["steps"].items():
        for method in found:
            ratio = record.figures["ratios"].get(f"{method}, {network}")
            if ratio is None:  # no step of a method: the one without, or a part alone
                continue
            times = [f"{found[key]:.1f}" for key in ("without", method)]
            rows.append(
                [f"`{method}`, {network}", *times, number(ratio["ratio"]), str(ratio["target"])]
            )
    return Table(record.name, ["step", "ms without", "ms with", "ratio", "at most"], rows)


def carry_over_table(record: Record) -> Table:
    """What probes read of the defender's rows and of an attacker's, by sample and model."""
    rows = []
    for sample, models in record.figures["samples"].items():
        for model, found in models.items():
            means = [sum(row[key] for row in found) / len(found) for key in found[0]]
            rows.append([sample, model, *(percent(mean) for mean in means)])
    head = ["sample", "model", "defender's rows %", "attacker's rows %", "primary %"]
    return Table(record.name, head, rows)


def time_table(record: Record) -> Table:
    """Where the time of an audit went, longest first."""
    f = record.figures
    rows = [[name, f"{seconds:.0f}"] for name, seconds in f["attacks"].items() if seconds >= 0.5]
    total = [["**wall time, two workers**", f"{f['wall']:.0f} (target {f['target']:.0f})"]]
    return Table(record.name, ["attack", "seconds, all models and seeds"], rows + total)
