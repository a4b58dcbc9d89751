"""Tables that the documentation alone shows: of benchmarks, and of an audit in brief."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import mean, stdev

from immunis.core.records import Record
from immunis.core.shapes import CONTROL
from immunis.report.format import number, percent
from immunis.report.markup import Table
from immunis.report.query import BY_MEANS, called, depths, scores


def advantage(
    defended: Sequence[float], original: Sequence[float], untrained: Sequence[float]
) -> dict[str, float]:
    """Residual advantage as version 0.1 had it: a jackknife over seeds, clipped at 0.

    Its records hold no answers by row, which the audit's own intervals are made of.
    """
    scores, n = [list(map(float, s)) for s in (defended, original, untrained)], len(defended)

    def share(mine: float, best: float, bare: float) -> float:
        return (mine - bare) / (best - bare) if best - bare >= 0.01 else math.nan

    middle = share(*map(mean, scores))
    left = [share(*(mean(s[:i] + s[i + 1 :]) for s in scores)) for i in range(n)]
    if math.isnan(middle):
        return dict.fromkeys(("mean", "low", "high"), math.nan)
    reach = math.nan if any(map(math.isnan, left)) else 4.302653 * (n - 1) / n**0.5 * stdev(left)
    ends = (0.0, math.inf) if math.isnan(reach) else (middle - reach, middle + reach)
    return dict(zip(("mean", "low", "high"), (max(0.0, x) for x in (middle, *ends)), strict=True))


def summary_table(record: Record) -> Table:
    """One row a model: its primary score, and the best that attackers read and reach."""
    attacks, families = record.figures["attacks"], record.settings["families"]
    probes = [attack for attack in attacks if families[attack] == "probes"]
    rows, heads = [], ["last features", *BY_MEANS]
    for name in [*record.figures["models"], CONTROL]:
        row, reached = record.figures["models"].get(name), depths(record, name)
        last = scores({attack: attacks[attack] for attack in probes}, name)
        cells = [max(last.values()), *(reached[means] for means in BY_MEANS if means in reached)]
        primary = "–" if row is None else percent(row["primary"])
        rows.append([called(record, name), primary, *map(percent, cells)])
    return Table(record.name, ["model", "primary", *heads][: len(rows[0])], rows)


def held_out_table(record: Record) -> Table:
    """One row an evaluation of a training: the primary score, and what ridge probes read."""
    history = record.figures["details"]["history"]
    depths = list(history[0]["depths"])
    blocks = [f"block {1 + int(re.findall(r'[0-9]+', at)[0])}" for at in depths]
    heads = ["step", "primary", "last features", *blocks]
    rows = [
        [
            str(row["step"]),
            *map(percent, (row["primary"], row["probe"], *map(row["depths"].get, depths))),
        ]
        for row in history
    ]
    return Table(record.name, heads, rows)


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


def faults_table(record: Record) -> Table:
    """One row a fault: how often it was tried, and how often it went wrong."""
    rows = [
        [row["what"], number(row["tried"]), number(row["wrong"])]
        for row in record.figures["rows"].values()
    ]
    return Table(record.name, ["what", "tried", "went wrong"], rows)


def fuzz_table(record: Record) -> Table:
    """One row a check of numerical functions: cases, and the shares answered and refused."""
    checks = record.figures["checks"]
    counts = ("right", "refused", "wrong", "long", "longest")
    total = {k: sum(told[k] for told in checks.values()) for k in counts}
    rows = []
    for name, told in {**checks, "all": total}.items():
        cases = told["right"] + told["refused"] + told["wrong"]
        shares = percent(told["right"] / cases), percent(told["refused"] / cases)
        long = number(told["long"]), number(told["longest"])
        rows.append([name, number(cases), *long, *shares, number(told["wrong"])])
    heads = ["check", "cases", "of 10⁴ rows or more", "of 10⁶", "right %", "refused %", "wrong"]
    return Table(record.name, heads, rows)


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


def parts_table(record: Record) -> Table:
    """What ridge probes read at each depth, by pair and what was changed of the defence."""
    rows = []
    for group, found in record.figures.items():
        for name, runs in found.items():
            (run,) = runs
            depths = [
                " / ".join(percent(score) for score in run[key]) for key in ("pooled", "maps")
            ]
            tuned = percent(run["tuned"]) if "tuned" in run else "–"
            rows.append([group, name, percent(run["primary"]), *depths, tuned])
    head = [
        "harmful",
        "defence",
        "primary %",
        "stages 1 to 4, pooled %",
        "all positions %",
        "tuned %",
    ]
    return Table(record.name, head, rows)


def time_table(record: Record) -> Table:
    """Where the time of an audit went, longest first."""
    f = record.figures
    rows = [[name, f"{seconds:.0f}"] for name, seconds in f["attacks"].items() if seconds >= 0.5]
    total = [["**wall time, two workers**", f"{f['wall']:.0f} (target {f['target']:.0f})"]]
    return Table(record.name, ["attack", "seconds, all models and seeds"], rows + total)
