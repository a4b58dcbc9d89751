"""``immunis audit``: what every attacker pays."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from immunis.cli import options
from immunis.cli.console import again, bar, estimate, fail, finish, take

if TYPE_CHECKING:
    from immunis.core.records import Record


@options.app.command()
def audit(
    recipe: options.Recipe,
    data: options.Data = None,
    allow_outside: options.Outside = False,
    output: options.Output = None,
    attacks: options.Attacks = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names of the recipe's defences, separated by commas, or none: the original and "
            "the controls alone; default: all."
        ),
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Folder of trained networks; default: OUTPUT/models.")
    ] = None,
    workers: options.Workers = 1,
    cluster: options.Cluster = None,
    device: options.Device = "cpu",
    precision: options.Precision = "32-true",
    final: Annotated[
        bool, typer.Option("--final", help="Score the final half of the test rows, and count it.")
    ] = False,
    fail_if: options.FailIf = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Attack a model, its defences and its controls, and print the worst case first.

    Finished attacks are kept in the output folder. Run the same command again to continue an
    interrupted audit. Scores come from half of the harmful test rows. --final scores the other
    half, once all settings are chosen, and a ledger counts how often.

    Figures for --fail-if: highest, original, untrained, gain, to_original, kept, cost, primary,
    rho, rir, failed. They are of the best defence; kept[NAME] asks for another. See docs/audit.md.
    """
    from immunis.core.jobs import Run
    from immunis.core.shapes import ORIGINAL
    from immunis.recipes import load_recipe
    from immunis.recipes.defences import tables_of
    from immunis.recipes.pipeline import Pipeline
    from immunis.training.settings import hardware_of

    chosen = load_recipe(recipe, allow_outside)
    hardware = hardware_of({"device": device, "precision": precision})
    names = None if methods is None else [name.strip() for name in methods.split(",")]
    if names == ["none"]:
        names = []
    conditions = options.conditions(fail_if, "audit", [ORIGINAL, *tables_of(chosen, names)])
    if dry_run:
        from immunis.recipes.estimate import estimate_audit

        pilot = partial(estimate_audit, attacks=attacks, methods=names, workers=workers)
        estimate(chosen.name, json, lambda: pilot(Pipeline(chosen, chosen.tasks(data), hardware)))
        return
    folder = take(output or f"immunis-runs/{chosen.name}-audit", "audit")
    kept = f"finished attacks are kept in {folder}; continue with: {again()}"
    with bar(f"audit {chosen.name}", json, kept) as report:
        run = Run(workers, cluster, folder / "attacks", device, report)
        how = hardware, models or folder / "models", report
        record = (
            Pipeline(chosen, chosen.tasks(data), *how)
            .audit(attacks, names, run, final=final)
            .record
        )
    show(record, folder, json)
    fail(record, conditions)


def show(record: Record, folder: Path, json: bool) -> None:
    """Write an audit's record and card into a folder, and print its tables.

    Those of a final audit have names of their own: the development audit's stay beside them.
    """
    from immunis.core.releases import release
    from immunis.report import audit_tables, runs, tables
    from immunis.report.card import render
    from immunis.report.text import closing, table_notes

    made = ("highest", "worst_case", "primary", "points", "audit", "samples", "transfer", "models")
    shown = [getattr(audit_tables, f"{name}_table")(record) for name in made]
    names = runs.FINAL if "final" in record.figures else (runs.NAME, "card.html")
    files = (record.to_file(), render(record))
    paths = release(folder, dict(zip(names, files, strict=True)))
    words = f"{table_notes(record)}\n\n{closing(record)}"
    finish(record, paths, json, [*shown, tables.definition_table(record)], words)
