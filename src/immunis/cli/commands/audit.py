"""``immunis audit``: what every attacker pays."""

from __future__ import annotations

from typing import Annotated

import typer

from immunis.cli.console import again, bar, explain, show, show_estimate, take, where
from immunis.cli.options import (
    Attacks,
    Cluster,
    Data,
    Device,
    DryRun,
    Json,
    Output,
    Precision,
    Recipe,
    Workers,
    app,
)


@app.command()
def audit(
    recipe: Recipe,
    data: Data = None,
    output: Output = None,
    attacks: Attacks = None,
    methods: Annotated[
        str | None, typer.Option(help="Some of the recipe's defences, separated by commas.")
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Folder of trained networks; default OUTPUT/models.")
    ] = None,
    workers: Workers = 1,
    cluster: Cluster = None,
    device: Device = "cpu",
    precision: Precision = "32-true",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run attacks against a model, its defences and its controls; the worst case leads.

    Finished attacks are kept in the output folder: the same command goes on where it stopped.
    """
    from immunis.core.files import release
    from immunis.core.jobs import Run
    from immunis.recipes import load_recipe
    from immunis.recipes.pipeline import audit_recipe
    from immunis.report.card import render
    from immunis.report.tables import audit_table, models_table, transfer_table, worst_case_table
    from immunis.report.text import beside_tables
    from immunis.training.hardware import hardware_of

    chosen = load_recipe(recipe)
    hardware = hardware_of({"device": device, "precision": precision})
    names = None if methods is None else [name.strip() for name in methods.split(",")]
    if dry_run:
        from immunis.recipes.estimate import estimate_audit

        with bar(f"estimate {chosen.name}", json):
            found = estimate_audit(chosen, chosen.tasks(data), attacks, names, workers, hardware)
        show_estimate(found, json)
        return
    folder = take(output or f"immunis-runs/{chosen.name}-audit", "audit")
    resume = f"finished attacks are kept in {folder}; {again()} goes on from there."
    with bar(f"audit {chosen.name}", json, resume) as report:
        result = audit_recipe(
            chosen,
            data,
            attacks=attacks,
            methods=names,
            models_folder=models or folder / "models",
            hardware=hardware,
            run=Run(workers, cluster, folder / "attacks", device, report),
        )
    made = {"record.json": result.record.to_file(), "card.html": render(result.record)}
    paths = release(folder, made)
    if json:
        typer.echo(result.to_json())
        return
    for table in (worst_case_table, audit_table, transfer_table, models_table):
        if table is not transfer_table or result.record.figures["transfer"]:
            show(table(result.record))
    explain(beside_tables(result.record))
    where(*paths)
