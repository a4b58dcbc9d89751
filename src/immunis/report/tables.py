"""Tables, built from records alone."""

from __future__ import annotations

from typing import Any

from immunis.core.controls import CONTROL, SCRATCH
from immunis.core.records import Record
from immunis.report.format import Table, number, percent
from immunis.report.query import outlines, per_class, telling_classes


def measure_table(record: Record) -> Table:
    """One row for each of the two spectra of a ``measure`` record."""
    return Table(
        record.name,
        ["task", "κ", "±", "rank", "of", "samples"],
        [
            [
                role,
                number(s["condition_number"]),
                f"{s['relative_error']:.0e}",
                number(s["rank"]),
                number(s["dimension"]),
                number(s["samples"]),
            ]
            for role, s in ((role, record.figures[role]) for role in ("primary", "harmful"))
        ],
    )


def immunize_table(record: Record) -> Table:
    """What an ``immunize`` record says of before and after."""
    f = record.figures
    rows = []
    for role in ("primary", "harmful"):
        pair = [f["spectra"][role][k] for k in ("before", "after")]
        kappas = [number(s["condition_number"]) for s in pair]
        rows.append([f"κ, {role}", *kappas, number(f["rir"][role])])
        rows.append(["rank", *(f"{s['rank']} of {s['dimension']}" for s in pair), ""])
    for label, pair in (
        ("ρ, harmful labels", f["rho"]),
        (f"primary score ({f['primary_score']['split']})", f["primary_score"]),
    ):
        rows.append([label, number(pair["before"]), number(pair["after"]), ""])
    return Table(record.name, ["", "before", "after", "factor"], rows)


def demo_table(record: Record) -> Table:
    """One row a method: condition numbers, RIR, and what two attackers read."""
    steps = record.settings["steps"]
    columns = ["method", "κ_P", "κ_H", "RIR", "RIR*", "prim."]
    return Table(
        record.name,
        [*columns, *(f"@{step}" for step in steps), "ridge", "s"],
        [
            [
                name,
                number(row["spectra"]["primary"]["condition_number"]),
                number(row["spectra"]["harmful"]["condition_number"]),
                number(row["rir"]["value"]),
                number(record.figures["ceiling"]),
                percent(row["primary_accuracy"]),
                *(percent(row["harmful_accuracy"]["gradient_descent"][str(t)]) for t in steps),
                percent(row["harmful_accuracy"]["ridge"]),
                f"{row['seconds']:.1f}",
            ]
            for name, row in record.figures["methods"].items()
        ],
    )


def _score_cell(row: dict[str, Any]) -> str:
    if row.get("status") != "done":
        return {"not applicable": "–", "failed": "failed"}.get(str(row.get("status")), "–")
    return percent(row["score"]["mean"])


def _called(record: Record, name: str) -> str:
    """A model's name; one that no longer does its primary task is called broken."""
    return f"{name} (broken)" if record.figures["models"].get(name, {}).get("broken") else name


def audit_table(record: Record) -> Table:
    """One row an attack: the score each model and the control allow, in percent.

    The last row is what the attacker reaches without anybody's weights.
    """
    names = [*record.figures["models"], CONTROL]
    rows = [
        [attack, *(_score_cell(rows.get(name, {})) for name in names)]
        for attack, rows in record.figures["attacks"].items()
    ]
    alone = _score_cell(record.figures["controls"].get(SCRATCH, {}))
    rows.append([f"({SCRATCH})", *["–"] * (len(names) - 1), alone])
    heads = ["attack", *(_called(record, name) for name in names)]
    return Table("test score (%) that each attack reaches", heads, rows)


def worst_case_table(record: Record) -> Table:
    """One row a model: the worst attack, the share of help it keeps, and what it costs."""
    rows = []
    for name, case in record.figures["worst_case"].items():
        cost = (case.get("multiplier") or {}).get("steps")
        kept = ["broken"] * 2 if case["broken"] else [
            number(case["residual_advantage"]) + _span(case.get("interval")),
            number(case["overall"]),
        ]  # fmt: skip
        unranked = case["undefined"] + case["failed"] + case["inapplicable"]
        rows.append(
            [
                name, kept[0], case["attack"] or "–", percent(case["accuracy"]),
                percent(case.get("gain", float("nan"))), number(cost), kept[1], number(unranked),
            ]
        )  # fmt: skip
    ran = max((case["attacks"] for case in record.figures["worst_case"].values()), default=0)
    title = f"worst of {ran} attacks, {record.settings['budget']} steps"
    columns = ["model", "keeps", "by attack", "score %", "gain", "cost x"]
    return Table(title, [*columns, "best on best", "not ranked"], rows)


def _span(interval: dict[str, float] | None) -> str:
    """An interval in brackets, where there is one."""
    if not interval or not interval["low"] < interval["high"]:
        return ""
    low, high = (number(float(f"{interval[end]:.2g}")) for end in ("low", "high"))
    return f" ({low}–{high})"


def transfer_table(record: Record) -> Table:
    """One row a harmless task and attack: score in percent, and cost against the original."""
    names = list(record.figures["models"])
    rows = [
        [f"{task}: {attack}", *(_transfer_cell(by_model.get(name, {})) for name in names)]
        for task, attacks in record.figures["transfer"].items()
        for attack, by_model in attacks.items()
    ]
    return Table("harmless tasks: test score (%), and cost x", ["task: how", *names], rows)


def _transfer_cell(row: dict[str, Any]) -> str:
    cost = row.get("multiplier", {}).get("steps")
    return f"{_score_cell(row)} (x{number(cost)})"


def models_table(record: Record) -> Table:
    """One row a model: its primary score, and the cheap figures that should foretell the rest."""
    figures = ("kappa_primary", "kappa_harmful", "rir", "rho")
    return Table(
        "the models, and what should foretell their protection",
        ["model", "primary", "κ_P", "κ_H", "RIR", "ρ"],
        [
            [
                _called(record, name),
                number(row["primary"]),
                *(number(row[figure]) for figure in figures),
            ]
            for name, row in record.figures["models"].items()
        ],
    )


def spectra_table(record: Record) -> Table:
    """One row a model (or before and after): κ and rank of both tasks' features."""
    found = outlines(record)
    rows = []
    for name, primary in found["primary"].items():
        harmful = found["harmful"][name]
        cells = [cell for o in (primary, harmful) for cell in (o.condition_number, o.rank)]
        rows.append([name, *map(number, cells), number(primary.dimension)])
    columns = ["", "κ, primary", "rank", "κ, harmful", "rank", "of"]
    return Table("spectra", columns, rows)


def class_table(record: Record, before: str, after: str) -> Table:
    """One row a class: each model's primary accuracy; the classes that lose most come first."""
    labels, scores = per_class(record)
    chosen = telling_classes(scores[before], scores[after])
    title = "primary accuracy (%) by class, largest loss first"
    if len(chosen) < len(labels):
        title += f"; {len(chosen)} of {len(labels)}"
    rows = [[labels[i], *(percent(of[i]) for of in scores.values())] for i in chosen]
    return Table(title, ["class", *scores], rows)


def foretold_table(record: Record) -> Table:
    """One row a model: the cheap figures, beside what the worst attack keeps, reaches and pays."""
    cheap, worst = models_table(record), worst_case_table(record)
    real = {row[0]: row[1:4] + row[5:6] for row in worst.rows}
    rows = [
        [*row, *real[name]] for name, row in zip(record.figures["models"], cheap.rows, strict=True)
    ]
    return Table(cheap.title, [*cheap.columns, *worst.columns[1:4], worst.columns[5]], rows)
