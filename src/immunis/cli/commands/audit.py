"""``immunis audit``: what every attacker pays."""

from __future__ import annotations

from typing import Annotated

import typer

from immunis.cli import options
from immunis.cli.console import again, bar, estimate, finish, take


@options.app.command()
def audit(
    recipe: options.Recipe,
    data: options.Data = None,
    output: options.Output = None,
    attacks: options.Attacks = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Names of the recipe's defences, separated by commas; default: all."),
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Folder of trained networks; default: OUTPUT/models.")
    ] = None,
    workers: options.Workers = 1,
    cluster: options.Cluster = None,
    device: options.Device = "cpu",
    precision: options.Precision = "32-true",
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Attack a model, its defences and its controls, and print the worst case first.

    Finished attacks are kept in the output folder. Run the same command again to continue an
    interrupted audit.
    """
    from immunis.core.files import release
    from immunis.core.jobs import Run
    from immunis.recipes import load_recipe
    from immunis.recipes.estimate import estimate_audit
    from immunis.recipes.pipeline import audit_recipe
    from immunis.report.card import render
    from immunis.report.tables import audit_table, models_table, transfer_table, worst_case_table
    from immunis.report.text import table_notes
    from immunis.training.hardware import hardware_of

    chosen = load_recipe(recipe)
    hardware = hardware_of({"device": device, "precision": precision})
    names = None if methods is None else [name.strip() for name in methods.split(",")]
    if dry_run:
        given = attacks, names, workers, hardware
        estimate(chosen.name, json, lambda: estimate_audit(chosen, chosen.tasks(data), *given))
        return
    folder = take(output or f"immunis-runs/{chosen.name}-audit", "audit")
    kept = f"finished attacks are kept in {folder}; continue with: {again()}"
    with bar(f"audit {chosen.name}", json, kept) as report:
        run = Run(workers, cluster, folder / "attacks", device, report)
        how = hardware, models or folder / "models"
        record = audit_recipe(chosen, data, attacks, names, *how, run=run).record
    made = (worst_case_table, audit_table, transfer_table, models_table)
    tables = [table(record) for table in made]
    paths = release(folder, {"record.json": record.to_file(), "card.html": render(record)})
    finish(record, paths, json, tables, table_notes(record))
