"""Tables, built from records alone."""

from __future__ import annotations

import math

from immunis.core.controls import CONTROL, SCRATCH
from immunis.core.records import Record
from immunis.core.shapes import AuditFigures, ImmunizeFigures, Interval, Outcome
from immunis.report.format import Table, number, percent
from immunis.report.query import ROLES, called, outlines, per_class, telling_classes


def measure_table(record: Record) -> Table:
    """Return one row for each of the two spectra of a ``measure`` record."""
    f = record.figures
    rows = []
    for role, s in ((role, f[role]) for role in ROLES):
        sizes = [number(n) for n in (s["rank"], s["dimension"], s["samples"])]
        error = f"{s.get('relative_error', math.nan):.0e}"
        rows.append([role, number(s["condition_number"]), error, *sizes])
    return Table(record.name, ["task", "κ", "±", "rank", "of", "samples"], rows)


def immunize_table(record: Record) -> Table:
    """Return what an ``immunize`` record says of before and after."""
    f: ImmunizeFigures = record.figures
    rows = []
    for role in ROLES:
        both = f["spectra"][role]["before"], f["spectra"][role]["after"]
        kappas = [s["condition_number"] for s in both]
        rows.append([f"κ, {role}", *map(number, (*kappas, f["rir"][role]))])
        rows.append(["rank", *(f"{s['rank']} of {s['dimension']}" for s in both), ""])
    rho, score = f["rho"], f["primary_score"]
    rows.append(["ρ, harmful labels", number(rho["before"]), number(rho["after"]), ""])
    label = f"primary score ({score['split']})"
    rows.append([label, number(score["before"]), number(score["after"]), ""])
    return Table(record.name, ["", "before", "after", "factor"], rows)


def demo_table(record: Record) -> Table:
    """Return one row a method: condition numbers, RIR, and what two attackers reach."""
    f = record.figures
    steps = record.settings["steps"]
    rows = []
    for name, row in f["methods"].items():
        spectra, reads = row["spectra"], row["harmful_accuracy"]
        kappas = [spectra[role]["condition_number"] for role in ROLES]
        accuracies = [reads["gradient_descent"][str(step)] for step in steps]
        cells = [*map(number, [*kappas, row["rir"]["value"], f["ceiling"]])]
        cells += map(percent, [row["primary_accuracy"], *accuracies, reads["ridge"]])
        rows.append([name, *cells, f"{row['seconds']:.1f}"])
    heads = ["method", "κ_P", "κ_H", "RIR", "RIR*", "prim.", *(f"@{step}" for step in steps)]
    return Table(record.name, [*heads, "ridge", "s"], rows)


def _score_cell(row: Outcome | None) -> str:
    if row is None or row["status"] == "not applicable":
        return "–"
    return percent(row["score"]["mean"]) if row["status"] == "done" else "failed"


def audit_table(record: Record) -> Table:
    """Return one row an attack: the score each model and the control allow, in percent.

    The last row is the score that the attacker reaches without anybody's weights.
    """
    f: AuditFigures = record.figures
    names = [*f["models"], CONTROL]
    rows = [
        [attack, *(_score_cell(rows.get(name)) for name in names)]
        for attack, rows in f["attacks"].items()
    ]
    alone = _score_cell(f["controls"][SCRATCH])
    rows.append([f"({SCRATCH})", *["–"] * (len(names) - 1), alone])
    heads = ["attack", *(called(record, name) for name in names)]
    return Table("test score (%) that each attack reaches", heads, rows)


def worst_case_table(record: Record) -> Table:
    """Return one row a model: the worst attack, the share of help it keeps, and its cost."""
    f: AuditFigures = record.figures
    rows = []
    for name, case in f["worst_case"].items():
        kept = number(case["residual_advantage"]) + _span(case.get("interval"))
        kept, overall = ["broken"] * 2 if case["broken"] else [kept, number(case["overall"])]
        scores = map(percent, (case["accuracy"], case.get("gain", math.nan)))
        cost = number((case.get("multiplier") or {}).get("steps"))
        unranked = number(case["undefined"] + case["failed"] + case["inapplicable"])
        rows.append([name, kept, case["attack"] or "–", *scores, cost, overall, unranked])
    ran = max((case["attacks"] for case in f["worst_case"].values()), default=0)
    title = f"worst of {ran} attacks, {record.settings['budget']} steps"
    heads = ["model", "keeps", "by attack", "score %", "gain", "cost x", "best on best"]
    return Table(title, [*heads, "not ranked"], rows)


def _span(interval: Interval | None) -> str:
    """Return an interval in brackets, where there is one."""
    if not interval or not interval["low"] < interval["high"]:
        return ""
    low, high = (number(float(f"{end:.2g}")) for end in (interval["low"], interval["high"]))
    return f" ({low}–{high})"


def transfer_table(record: Record) -> Table:
    """Return one row a harmless task and attack: score in percent, and cost."""
    f: AuditFigures = record.figures

    def cell(row: Outcome | None) -> str:
        cost = row.get("multiplier", {}).get("steps") if row and row["status"] == "done" else None
        return f"{_score_cell(row)} (x{number(cost)})"

    rows = [
        [f"{task}: {attack}", *(cell(by_model.get(name)) for name in f["models"])]
        for task, attacks in f["transfer"].items()
        for attack, by_model in attacks.items()
    ]
    title = "harmless tasks: test score (%), and cost x"
    return Table(title, ["task: attack", *f["models"]], rows)


def models_table(record: Record) -> Table:
    """Return one row a model: its primary score, and the cheap figures."""
    f: AuditFigures = record.figures
    rows = []
    for name, row in f["models"].items():
        cheap = (row["kappa_primary"], row["kappa_harmful"], row["rir"], row["rho"])
        rows.append([called(record, name), *map(number, (row["primary"], *cheap))])
    title = "the models, and the figures that should predict their protection"
    return Table(title, ["model", "primary", "κ_P", "κ_H", "RIR", "ρ"], rows)


def predictors_table(record: Record) -> Table:
    """Return one row a model: the cheap figures, beside what the worst attack reaches and pays."""
    cheap, worst = models_table(record), worst_case_table(record)
    real = {row[0]: [*row[1:4], row[5]] for row in worst.rows}
    names = record.figures["models"]
    rows = [[*row, *real[name]] for name, row in zip(names, cheap.rows, strict=True)]
    return Table(cheap.title, [*cheap.columns, *worst.columns[1:4], worst.columns[5]], rows)


def spectra_table(record: Record) -> Table:
    """Return one row a model (or before and after): κ and rank of both tasks' features."""
    found = outlines(record)
    rows = []
    for name, primary in found["primary"].items():
        harmful = found["harmful"][name]
        cells = [cell for o in (primary, harmful) for cell in (o.condition_number, o.rank)]
        rows.append([name, *map(number, cells), number(primary.dimension)])
    return Table("spectra", ["", "κ, primary", "rank", "κ, harmful", "rank", "of"], rows)


def class_table(record: Record, before: str, after: str) -> Table:
    """Return one row a class: each model's primary accuracy, largest loss first."""
    labels, scores = per_class(record)
    chosen = telling_classes(scores[before], scores[after])
    title = "primary accuracy (%) by class, largest loss first"
    if len(chosen) < len(labels):
        title += f"; {len(chosen)} of {len(labels)}"
    rows = [[labels[i], *(percent(of[i]) for of in scores.values())] for i in chosen]
    return Table(title, ["class", *scores], rows)
