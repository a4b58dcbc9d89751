"""Rewrite the tables and figures in the docs from the records in ``results/``.

A table stands between ``<!-- table: RECORD -->`` and ``<!-- end -->``; a figure is
``docs/images/RECORD-FIGURE.png``. ``tests/whole/test_docs.py`` fails where one differs from its
record. Run: ``python docs/build.py``.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from pathlib import Path
from typing import Any

from age import note, older_table
from doctables import (
    advantage,
    bench_table,
    carry_over_table,
    faults_table,
    fuzz_table,
    held_out_table,
    load_table,
    parts_table,
    step_table,
    summary_table,
    time_table,
)

from immunis.audits.describe import primary_hits
from immunis.audits.statistics.bootstrap import Design
from immunis.audits.statistics.summary import non_inferiority
from immunis.core.files import write_bytes, write_text
from immunis.core.records import Record
from immunis.paper import figures as reproduced
from immunis.paper import tables as again
from immunis.report import figures
from immunis.report.audit_tables import (
    audit_table,
    highest_table,
    models_table,
    points_table,
    primary_table,
)
from immunis.report.format import defined, number
from immunis.report.markup import Table
from immunis.report.tables import definition_table, demo_table, immunize_table
from immunis.theory.definition import TOLERANCE

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def attacks_table(record: Record) -> Table:
    """Points with their intervals by attack; scores if the record is of 0.1 and holds none."""
    rows = (row for of in record.figures["attacks"].values() for row in of.values())
    told = any("above_untrained" in row for row in rows)
    return points_table(record) if told else audit_table(record)


TABLES = {
    "demo": demo_table,
    "demo-definition": definition_table,
    "bench-core": bench_table,
    "bench-attacks": bench_table,
    "audit-digits-cnn": attacks_table,
    "audit-digits-cnn-scores": audit_table,
    "audit-digits-cnn-worst": highest_table,
    "audit-digits-cnn-primary": primary_table,
    "audit-digits-cnn-models": models_table,
    "audit-digits-cnn-brief": summary_table,
    "immunize-minilm-intents-small": immunize_table,
    "immunize-minilm-intents-small-depths": held_out_table,
    "audit-digit-parity": attacks_table,
    "audit-digit-parity-worst": highest_table,
    "audit-digit-parity-models": models_table,
    "audit-mnist-digits": attacks_table,
    "audit-mnist-digits-models": models_table,
    "audit-mnist-digits-standardised": attacks_table,
    "bench-audit": time_table,
    "joined-flowers-resnet18": attacks_table,
    "joined-flowers-resnet18-models": models_table,
    "joined-cars-resnet18": attacks_table,
    "joined-cars-resnet18-models": models_table,
    "joined-flowers-vit": attacks_table,
    "joined-flowers-vit-models": models_table,
    "joined-cars-vit": attacks_table,
    "joined-cars-vit-models": models_table,
    "audit-tiny-imagenet-flowers-resnet18-deep": attacks_table,
    "audit-tiny-imagenet-flowers-resnet18-deep-models": models_table,
    "audit-tiny-imagenet-cars-resnet18-deep": attacks_table,
    "audit-tiny-imagenet-cars-resnet18-deep-models": models_table,
    "audit-small-vit": attacks_table,
    "audit-small-vit-models": models_table,
    "bench-deep": step_table,
    "bench-carry-over": carry_over_table,
    "bench-probe-parts": parts_table,
    "bench-reproduce": bench_table,
    "bench-load": load_table,
    "faults": faults_table,
    "fuzz": fuzz_table,
    **{
        f"reproduce-{experiment}-{name}".rstrip("-"): make
        for experiment, made in again.TABLES.items()
        if experiment != "deep"
        for name, make in made.items()
    },
}
FIGURES = {
    "audit-digits-cnn": ("depths", "scores"),
    "reproduce-house-prices": tuple(reproduced.FIGURES["house-prices"]),
    "reproduce-mnist": tuple(reproduced.FIGURES["mnist"]),
}
DEEP = [path.stem for path in sorted((ROOT / "results").glob("reproduce-deep-*.json"))]
for name in DEEP:  # one record for each network
    TABLES |= {f"{name}-{end}".rstrip("-"): make for end, make in again.TABLES["deep"].items()}
    FIGURES[name] = tuple(reproduced.FIGURES["deep"])
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.S)


JOINED = {  # audits of one original by the same attackers, by the ends of their records' names
    "joined-flowers-resnet18": ("", "-held", "-tuning"),
    "joined-cars-resnet18": ("", "-held", "-tuning"),
    "joined-flowers-vit": ("", "-held", "-near", "-tuning", "-recall"),
    "joined-cars-vit": ("", "-plain", "-held", "-near", "-tuning", "-recall"),
}
MENDED = ("kernel",)  # attacks that were made stronger: what the newest audit has of them counts
PAIRS = {
    "Flowers, ResNet-18": "joined-flowers-resnet18",
    "Cars, ResNet-18": "joined-cars-resnet18",
    "Flowers, ViT": "joined-flowers-vit",
    "Cars, ViT": "joined-cars-vit",
}
LINEAR = (
    "gd_line_search", "sgd", "adam", "lbfgs", "ridge", "logistic", "standardise", "whiten",
    "batchnorm_probe", "float64",
)  # fmt: skip
NOT_HELD = ("earlier_layer", "finetune_last", "finetune_all", "reinit_last")
ATTACKS = (*LINEAR, "mlp", "knn", "kernel", *NOT_HELD)
LOSS, KEPT, RIR = 0.5, 0.1, 8700  # points of the primary score, of the original's help; ResNet-18


def reached_table() -> Table:
    """What the defence that each recipe ships reaches of what was wanted; bold where missed."""

    def cell(text: str, missed: bool) -> str:
        return f"**{text}**" if missed else text

    def lost(run: dict) -> float:
        """How far the held-out primary score of the weights taken is from the original's."""
        taken = next(row for row in run["history"] if row["step"] == run["best_step"])
        return taken["primary"] - run["history"][0]["primary"]

    def change(points: list[float]) -> str:
        if not points:
            return "–"
        mean = statistics.mean(points)
        return cell(f"{mean:+.2f} ({min(points):+.2f})", mean < -LOSS)

    rows = []
    for pair in PAIRS:
        figures, shipped = shipped_in(pair)
        before, after = (figures["models"][model] for model in ("original", shipped))
        control = figures["models"].get("plain")
        ratios = [seed["rir"] for seed in after["variants"]]

        def ratio_cell(wanted: bool, after: dict = after, ratios: list = ratios) -> str:
            if None in ratios:
                return cell(defined(None), wanted)
            text = f"{number(after['rir'])} ({number(min(ratios))} to {number(max(ratios))})"
            return cell(text, wanted and statistics.median(ratios) < RIR)

        shares = {attack: kept(figures, attack, shipped)["mean"] for attack in ATTACKS}
        worst = max(LINEAR, key=lambda attack: shares[attack])
        rows.append(
            [
                pair,
                change([100 * (seed["primary"] - before["primary"]) for seed in after["variants"]]),
                change([100 * lost(run) for run in figures["training"].get(shipped, [])]),
                f"{100 * (after['primary'] - control['primary']):+.2f}" if control else "–",
                cell(f"{worst} {shares[worst]:.2f}", True) if shares[worst] > 0 else "nothing",
                *(
                    cell(f"{shares[attack]:.2f}", shares[attack] > KEPT)
                    for attack in ("mlp", "knn")
                ),
                ratio_cell("ResNet" in pair),
                *(f"{shares[attack]:.2f}" for attack in NOT_HELD),
            ]
        )
    heads = [
        "pair", "primary, points", "held out", "beside `plain`", "linear probes keep", "two-layer",
        "neighbours", "RIR", *(attack.replace("_", " ") for attack in NOT_HELD),
    ]  # fmt: skip
    return Table("reached", heads, rows)


def kept_table() -> Table:
    """What every attack keeps of the original's help after the defence that each recipe ships."""
    found = [shipped_in(pair) for pair in PAIRS]

    def cell(figures: dict, shipped: str, attack: str) -> str:
        share = kept(figures, attack, shipped)
        said = [f"{share[name]:.2f}" for name in ("mean", "low", "high")]
        return "{} ({} to {})".format(*said) if said[2] != "0.00" else "0"

    rows = [[attack, *(cell(*audits, attack) for audits in found)] for attack in ATTACKS]
    return Table("kept", ["attack", *PAIRS], rows)


def shipped_in(pair: str) -> tuple[dict, str]:
    """Figures of all audits of a pair, and the label of the defence that its recipe ships."""
    label = "probe-held" if "ResNet" in pair else "probe-recall"
    return record(PAIRS[pair]).figures, label


def kept(figures: dict, attack: str, model: str) -> dict[str, float]:
    """Residual advantage and its interval, from a record's scores by the rule of version 0.1."""
    rows = figures["attacks"][attack]
    return advantage(*(rows[name]["score"]["values"] for name in (model, "original", "untrained")))


def record(name: str) -> Record:
    """Load a committed record, or the audits of one original as one."""
    found = records(name)
    return joined(found) if len(found) > 1 else found[0]


def records(name: str) -> list[Record]:
    """Load the records of a table; several tables of one record share the beginning of its name."""
    if name in ("reached", "kept"):
        return [each for pair in PAIRS.values() for each in records(pair)]
    while not (ROOT / "results" / f"{name}.json").exists() and "-" in name:
        if name in JOINED:
            stem = name.replace("joined", "audit-tiny-imagenet")
            return [each for end in JOINED[name] for each in records(f"{stem}{end}")]
        name = name.rpartition("-")[0]
    return [told_anew(Record.load(ROOT / "results" / f"{name}.json"))]


def told_anew(record: Record) -> Record:
    """Make the intervals of primary scores again where a record has the answers by row."""
    models = record.figures.get("models", {})
    hits = {name: found for name in models if (found := primary_hits(models[name])) is not None}
    if record.kind != "audit" or not hits:
        return record
    names = [name for name in (record.settings["original"], record.settings["plain"]) if name]
    design = Design({name: range(len(found)) for name, found in hits.items()}, 1)
    for name, change in non_inferiority(hits, design, names, TOLERANCE).items():
        models[name]["primary_change"] = change
    return record


def joined(records: list[Record]) -> Record:
    """Audits of one original as one record.

    Raises:
        ValueError: where what they have in common does not agree.
    """
    models: dict[str, Any] = {}
    attacks: dict[str, Any] = {}
    today = {  # how the original fares by a mended attack as it is now
        attack: audit.figures["attacks"][attack]["original"]["score"]
        for audit in sorted(records, key=lambda audit: audit.created)
        for attack in MENDED
        if attack in audit.figures["attacks"]
    }
    for audit in records:
        for what in ("budget", "seeds", "search", "space"):
            agree(what, audit.settings[what], records[0].settings[what])
        agree("data", audit.data, records[0].data)
        for name, row in audit.figures["models"].items():
            agree(name, rounded(row), rounded(models.setdefault(name, row)))
        for attack, rows in audit.figures["attacks"].items():
            if today.get(attack, rows["original"]["score"]) != rows["original"]["score"]:
                continue
            have = attacks.setdefault(attack, {})
            for name, row in rows.items():
                agree(f"{attack} on {name}", row["score"], have.setdefault(name, row)["score"])
    training = {k: run for audit in records for k, run in audit.figures.get("training", {}).items()}
    figures = {**records[0].figures, "models": models, "attacks": attacks, "training": training}
    return dataclasses.replace(records[0], figures=figures)


def rounded(row: Any) -> Any:
    """A model's figures to six digits: the last ones of κ vary with the number of threads."""
    if isinstance(row, dict):
        return {key: rounded(value) for key, value in row.items()}
    if isinstance(row, list):
        return [rounded(value) for value in row]
    return f"{row:.6g}" if isinstance(row, float) else row


def agree(what: str, one: object, other: object) -> None:
    """Refuse two records that differ in something."""
    if one != other:
        raise ValueError(f"records to be joined differ in {what}: {one} and {other}.")


def page(text: str) -> str:
    """Return a page with every marked table made anew, older ones under a line that says so."""
    return BLOCK.sub(lambda m: m[1] + said(m[2]) + table(m[2]).markdown() + "\n" + m[3], text)


def said(name: str) -> str:
    """What stands above a table."""
    return "" if name == "older" else note(records(name))


def table(name: str) -> Table:
    """The table of a name."""
    made = {"reached": reached_table, "kept": kept_table}.get(name)
    if name == "older":
        return older_table(ROOT / "results")
    return made() if made else TABLES[name](record(name))


def drawn(name: str, figure: str) -> bytes:
    """Return a figure of a record as PNG."""
    draw = reproduced.FIGURES.get(record(name).name, {}).get(figure)
    return (draw or getattr(figures, figure))(record(name))


def image(name: str, figure: str) -> Path:
    """Where a figure of a record lies."""
    return ROOT / "docs" / "images" / f"{name}-{figure}.png"


def main() -> None:
    """Rewrite every page and figure."""
    for path in PAGES:
        write_text(path, page(path.read_text(encoding="utf-8")))
    for name, wanted in FIGURES.items():
        for figure in wanted:
            write_bytes(image(name, figure), drawn(name, figure))


if __name__ == "__main__":
    main()
