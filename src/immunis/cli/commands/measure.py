"""``immunis measure``: spectra of a task pair, and how far it can be immunized."""

from __future__ import annotations

from typing import Annotated

import typer

from immunis.cli import options
from immunis.cli.console import bar, finish, take


@options.app.command()
def measure(
    recipe: options.Recipe,
    data: options.Data = None,
    allow_outside: options.Outside = False,
    output: options.Output = None,
    device: options.Device = "cpu",
    precision: Annotated[
        str, typer.Option(help="Precision of pre-training: 32-true, bf16-mixed, ...")
    ] = "32-true",
    json: options.Json = False,
) -> None:
    """Measure a task pair: both spectra, and RIR*, the ceiling for every linear defence.

    If the recipe has a network, its features are measured; otherwise the inputs are.
    """
    from immunis.core.releases import release
    from immunis.recipes import load_recipe
    from immunis.recipes.pipeline import Pipeline
    from immunis.report.ratios import measured_words
    from immunis.report.tables import definition_table, measure_table
    from immunis.training.settings import hardware_of

    chosen = load_recipe(recipe, allow_outside)
    hardware = hardware_of({"device": device, "precision": precision})
    folder = take(output or f"immunis-runs/{chosen.name}-measure", "measure")
    with bar(f"measure {chosen.name}", json) as report:
        tasks, models = chosen.tasks(data), folder / "models"
        measured = Pipeline(chosen, tasks, hardware, models, report).measure()
        record = measured.record.with_settings(recipe=chosen.to_dict())
    paths = release(folder, {"record.json": record.to_file()})
    tables = [measure_table(record), definition_table(record)]
    finish(record, paths, json, tables, measured_words(record))
