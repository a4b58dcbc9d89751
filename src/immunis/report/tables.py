"""Tables of records: what each kind of record says, in rows of text."""

from __future__ import annotations

import math

from immunis.core.records import Record
from immunis.core.shapes import Definition, ImmunizeFigures
from immunis.report.format import defined, number, percent, points
from immunis.report.markup import Table
from immunis.report.query import ROLES, definitions, outlines, per_class, telling_classes


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
        rows.append([f"κ, {role}", *map(number, kappas), defined(f["rir"][role])])
        rows.append(["rank", *(f"{s['rank']} of {s['dimension']}" for s in both), ""])
    rho, score = f["rho"], f["primary_score"]
    rows.append(["ρ, harmful labels", number(rho["before"]), number(rho["after"]), ""])
    label = f"primary score ({score['split']})"
    rows.append([label, number(score["before"]), number(score["after"]), ""])
    if near := f.get("retrieval"):
        rows.append(["nearest neighbour", number(near["before"]), number(near["after"]), ""])
    rows += _price_rows(record)
    return Table(record.name, ["", "before", "after", "factor"], rows)


def _price_rows(record: Record) -> list[list[str]]:
    """Return what the weight of a defence was chosen by: trainings, and their price."""
    details, chosen = record.figures["details"], record.settings.get("weight")
    if "weights_tried" not in details:
        return []
    tried = ", ".join(number(row["weight"]) for row in details["weights_tried"])
    rows = [[f"weights tried: {tried}", "", number(chosen), ""]]
    if price := details.get("price"):
        label = f"less the same training without it ({number(price['plain'])})"
        rows.append([label, "", points(price, record.data["primary"]["kind"]), ""])
    return rows


def definition_table(record: Record) -> Table:
    """Return one row a model: the conditions of Definition 3.1, each with its figure."""
    heads = ["model", "(a) κ_H rises", "(b) κ_P does not", "(c) primary score kept"]
    rows = [[name, *verdicts(found)] for name, found in definitions(record).items()]
    return Table("immunized, by the paper's Definition 3.1", heads, rows)


def verdicts(found: Definition) -> list[str]:
    """Return the three conditions of Definition 3.1 as cells."""
    cells = []
    for part, factor in ((found["harmful"], "× "), (found["primary"], "× "), (found["score"], "")):
        figure, said = part["figure"], "yes" if part["holds"] else "no"
        if figure is None or part["holds"] is None:
            cells.append(defined(None) if factor else "not measured")
        else:
            shown = factor + number(figure) if factor else f"{figure:+.3f}"
            cells.append(f"{said} ({shown})")
    return cells


def demo_table(record: Record) -> Table:
    """Return one row a method: condition numbers, RIR, and what two attackers reach."""
    f = record.figures
    steps = record.settings["steps"]
    rows = []
    for name, row in f["methods"].items():
        spectra, reads = row["spectra"], row["harmful_accuracy"]
        kappas = [spectra[role]["condition_number"] for role in ROLES]
        accuracies = [reads["gradient_descent"][str(step)] for step in steps]
        cells = [*map(number, kappas), defined(row["rir"]["value"]), number(f["ceiling"])]
        cells += map(percent, [row["primary_accuracy"], *accuracies, reads["ridge"]])
        rows.append([name, *cells, f"{row['seconds']:.1f}"])
    heads = ["method", "κ_P", "κ_H", "RIR", "RIR*", "prim.", *(f"@{step}" for step in steps)]
    return Table(record.name, [*heads, "ridge", "s"], rows)


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
