"""Tables of an audit: what attacks reach, gain and keep, and what is known of the models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from immunis.core.records import Record
from immunis.core.shapes import CONTROL, SCRATCH, AuditFigures, Outcome, Worst
from immunis.report import query
from immunis.report.format import (
    NOTED,
    defined,
    number,
    percent,
    points,
    share_cell,
    steps_of,
    times,
    unit,
)
from immunis.report.markup import Table
from immunis.report.query import called

NO_SHARE = {
    "¹": f"¹ not enough evidence: {query.NO_HELP}.",
    "²": f"² not enough evidence: {query.WIDE}, or not known.",
}
TUNED = ("settings tried", "steps", "harmful rows a step")


def _score_cell(row: Outcome | None) -> str:
    if row is None or row["status"] == "not applicable":
        return "–"
    return _marked(percent(row["score"]["mean"]), row) if row["status"] == "done" else "failed"


def _marked(cell: str, row: Outcome) -> str:
    """Return a cell with a mark if the attack notes a doubt about its runs."""
    return cell + NOTED * bool(query.noted(row))


def _notes(told: Iterable[str]) -> tuple[str, ...]:
    """Return what attacks note, each under the mark of their cells."""
    return tuple(f"{NOTED} {note}." for note in told)


def without_share(rows: list[list[str]]) -> tuple[str, ...]:
    """Return why there is no share where a cell holds none."""
    cells = {cell for row in rows for cell in row}
    return tuple(note for mark, note in NO_SHARE.items() if f"–{mark}" in cells)


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
    return Table(
        "test score (%) that each attack reaches", heads, rows, _notes(query.doubts(record))
    )


def highest_table(record: Record) -> Table:
    """Return one row a model: the highest score of any attack; the untrained control comes last."""
    f: AuditFigures = record.figures
    kind = record.data["attacker"]["kind"]
    rows = []
    for name, case in f["worst_case"].items():
        cells = [score_cell(record, case["highest_accuracy"]), case["highest_attack"] or "–"]
        rows.append([called(record, name), *cells, points(case.get("to_original"), kind)])
    bare = query.reached(record, CONTROL)
    rows.append([CONTROL, score_cell(record, bare.score), bare.attack or "–", "–"])
    ran = max((case["attacks"] for case in f["worst_case"].values()), default=0)
    title = f"highest score of {ran} attacks, {steps_of(record)}"
    most = "highest %" if kind == "classification" else "highest R²"
    return Table(title, ["model", most, "by attack", f"to original, {unit(kind)}"], rows)


def worst_case_table(record: Record) -> Table:
    """Return one row a model: what the worst attack gains, then the share that one keeps.

    Where an audit tells them apart, a second row is over the attacks alone that no defence trains
    or stops against.
    """
    f: AuditFigures = record.figures
    rows = []
    for name, case in f["worst_case"].items():
        broken = query.broken(record, name)
        rows.append(_worst_row(record, name, case, broken))
        if query.unseen(record) and "unseen" in case:
            rows.append(_worst_row(record, f"{name}, unseen attacks", case["unseen"], broken))
    gain = f"gain, {unit(record.data['attacker']['kind'])}"
    heads = ["model", gain, "by attack", "keeps", "by", "cost x"]
    title = "what attacks gain over untrained features, and keep"
    return Table(title, heads, rows, without_share(rows))


def score_cell(record: Record, value: float) -> str:
    """Return a score of the attacker's task: in percent of rows, or R²; – where there is none."""
    classes = record.data["attacker"]["kind"] == "classification"
    return percent(value) if classes or math.isnan(value) else number(value)


def _worst_row(record: Record, name: str, case: Worst, broken: bool) -> list[str]:
    gain = case.get("gain_interval") or {"mean": case.get("gain")}
    share = query.worst_share(case)
    by = "" if broken or query.untold(share) else case.get("share_attack", case["attack"])
    kept = "broken" if broken else share_cell(share)
    cost = times((case.get("multiplier") or {}).get("steps"))
    shown = points(gain, record.data["attacker"]["kind"])
    return [name, shown, case["attack"] or "–", kept, by or "–", cost]


def points_table(record: Record) -> Table:
    """Return one row an attack: its score on untrained features, and points above it, by model.

    The last row is the score that the attacker reaches without anybody's weights.
    """
    f: AuditFigures = record.figures
    kind, names = record.data["attacker"]["kind"], list(f["models"])

    def cell(rows: Mapping[str, Outcome], name: str) -> str:
        row = rows.get(name)
        gain = query.gain(row, rows.get(CONTROL))
        if row is None or gain is None:
            return _score_cell(row) if row and row["status"] == "failed" else "–"
        return _marked(points(gain, kind), row)

    rows = [
        [attack, _score_cell(of.get(CONTROL)), *(cell(of, name) for name in names)]
        for attack, of in f["attacks"].items()
    ]
    rows.append([f"({SCRATCH})", _score_cell(f["controls"][SCRATCH]), *["–"] * len(names)])
    heads = ["attack", f"{CONTROL} %", *(called(record, name) for name in names)]
    title = f"{unit(kind)} that each attack gains over the score on untrained features"
    return Table(title, heads, rows, _notes(query.doubts(record)))


def shares_table(record: Record) -> Table:
    """Return one row an attack: the share of the original's help that it keeps, by defence."""
    title = "share of the original's help that each attack keeps"

    def cell(rows: Mapping[str, Outcome], name: str) -> str:
        row = rows.get(name)
        return share_cell(
            row.get("residual_advantage") if row and row["status"] == "done" else None
        )

    attacks, names = record.figures["attacks"], query.defended(record)
    rows = [[attack, *(cell(of, name) for name in names)] for attack, of in attacks.items()]
    heads = ["attack", *(called(record, name) for name in names)]
    return Table(title, heads, rows, without_share(rows))


def primary_table(record: Record) -> Table:
    """Return one row a model: its primary score, against the original and the same training."""
    f: AuditFigures = record.figures
    kind, original = record.data["primary"]["kind"], record.settings["original"]
    plain = record.settings.get("plain")
    others = [original, *([] if plain is None else [plain])]
    rows = []
    for name, row in f["models"].items():
        changes = row.get("primary_change", {})
        told = {True: "yes", False: "no", None: "too few rows"}
        cells = []
        for other in others:
            change, said = changes.get(other), "–"
            if change is not None and math.isfinite(query.known(change["low"])):
                said = told[change["holds"]]
            cells += [points(change, kind), said]
        rows.append([called(record, name), number(row["primary"]), *cells])
    heads = [cell for other in others for cell in (f"to {other}, {unit(kind)}", "kept")]
    return Table("primary score", ["model", "primary", *heads], rows)


def transfer_table(record: Record) -> Table:
    """Return one row a harmless task and attack: score in percent, and cost."""
    f: AuditFigures = record.figures

    def cell(row: Outcome | None) -> str:
        cost = row.get("multiplier", {}).get("steps") if row and row["status"] == "done" else None
        reached = times(cost)
        return f"{_score_cell(row)} ({reached if reached == 'not reached' else f'x{reached}'})"

    rows = [
        [f"{task}: {attack}", *(cell(by_model.get(name)) for name in f["models"])]
        for task, attacks in f["transfer"].items()
        for attack, by_model in attacks.items()
    ]
    near = {name: row.get("retrieval_transfer", {}) for name, row in f["models"].items()}
    rows += [
        [f"{task}: nearest neighbour", *(percent(found[task]) for found in near.values())]
        for task in f["transfer"]
        if all(task in found for found in near.values())
    ]
    title = "harmless tasks: test score (%), and cost x"
    told = (note for attacks in f["transfer"].values() for note in query.notes(attacks))
    return Table(title, ["task: attack", *f["models"]], rows, _notes(told))


def samples_table(record: Record) -> Table:
    """Return one row a model: what the better of two linear probes reads from few rows."""
    curves = record.figures.get("samples") or {}

    def cell(score: float, spread: float | None) -> str:
        return percent(score) + ("" if spread is None else f" ± {percent(spread)}")

    rows = [
        [
            called(record, name),
            *(cell(p["mean"], p.get("spread")) for p in curve["points"]),
            cell(curve["area"], curve.get("spread")),
        ]
        for name, curve in curves.items()
    ]
    points = next(iter(curves.values()))["points"] if curves else []  # of the same rows for all
    counts = ["all" if p["per_class"] is None else str(p["per_class"]) for p in points]
    title = "test score (%) of linear probes by rows of each class, and their mean over log rows"
    return Table(title, ["model", *counts, "area"], rows)


def models_table(record: Record) -> Table:
    """Return one row a model: its primary score, the cheap figures, and how it was tuned."""
    f: AuditFigures = record.figures
    texts = any("retrieval" in row for row in f["models"].values())
    tuned = {name: _tuned(record, name) for name in f["models"]}
    shown = [head for head in TUNED if any(of[head] != "–" for of in tuned.values())]
    rows = []
    for name, row in f["models"].items():
        cheap = map(number, (row["primary"], row["kappa_primary"], row["kappa_harmful"]))
        near = [number(row.get("retrieval"))] if texts else []
        cells = [*cheap, defined(row["rir"]), number(row["rho"]), *near]
        rows.append([called(record, name), *cells, *(tuned[name][head] for head in shown)])
    title = "the models, and the figures that should predict their protection"
    heads = ["model", "primary", "κ_P", "κ_H", "RIR", "ρ", *(["retrieval"] if texts else [])]
    return Table(title, [*heads, *shown], rows)


def _tuned(record: Record, name: str) -> dict[str, str]:
    """Return how a defence was tuned and trained, by the heads of ``TUNED``.

    The first records leave the weights that a training searched out of the settings tried.
    """
    found: Any = record.figures.get("training", {}).get(name, ())
    runs = [run for run in found if run is not None]
    tried = record.figures["models"][name].get("tried")
    if tried is not None:
        tried = max([tried, *(len(run.get("weights_tried", ())) for run in runs)])

    def span(key: str) -> str:
        known = sorted({run[key] for run in runs if key in run})
        return " to ".join(map(number, dict.fromkeys([*known[:1], *known[-1:]]))) or "–"

    told = "1 (not tuned)" if tried == 1 else number(tried)
    return dict(zip(TUNED, (told, span("steps"), span("harmful_batch")), strict=True))


def predictors_table(record: Record) -> Table:
    """Return one row a model: the cheap figures, beside what the worst attack gains and pays."""
    cheap, worst, names = models_table(record), worst_case_table(record), record.figures["models"]
    most = highest_table(record)
    real = {row[0]: [row[1], row[-1]] for row in worst.rows}
    scored = {name: row[1:3] for name, row in zip(names, most.rows, strict=False)}
    rows = [
        [*row[:6], *scored[name], *real[name]] for name, row in zip(names, cheap.rows, strict=True)
    ]
    heads = [*cheap.columns[:6], *most.columns[1:3], worst.columns[1], worst.columns[-1]]
    return Table(cheap.title, heads, rows)
