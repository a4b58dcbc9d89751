"""``immunis measure``: spectra of a task pair, and how far it can be immunized."""

from __future__ import annotations

import typer

from immunis.cli.console import bar, explain, show, take, where
from immunis.cli.options import Data, Device, Json, Output, Precision, Recipe, app


@app.command()
def measure(
    recipe: Recipe,
    data: Data = None,
    output: Output = None,
    device: Device = "cpu",
    precision: Precision = "32-true",
    json: Json = False,
) -> None:
    """Measure a task pair: both spectra, and the ceiling RIR* no linear defence can pass.

    Of a recipe with a network its features are measured, of others the inputs.
    """
    from immunis.core.files import release
    from immunis.recipes import load_recipe
    from immunis.recipes.pipeline import measure_recipe
    from immunis.report.format import number
    from immunis.report.tables import measure_table
    from immunis.training.hardware import hardware_of

    chosen = load_recipe(recipe)
    hardware = hardware_of({"device": device, "precision": precision})
    folder = take(output or f"immunis-runs/{chosen.name}-measure", "measure")
    with bar(f"measure {chosen.name}", json) as report:
        tasks = chosen.tasks(data)
        measured = measure_recipe(chosen, tasks, hardware, folder / "models", report)
        record = measured.record.with_settings(recipe=chosen.to_dict())
    paths = release(folder, {"record.json": record.to_file()})
    if json:
        typer.echo(record.to_json())
        return
    show(measure_table(record))
    explain(
        f"ceiling RIR* = {number(measured.ceiling)}, with a ridge of 1e-3: "
        f"{number(measured.ridge_ceiling)}; free directions: {measured.free_directions}; "
        f"harmful labels a linear probe explains: ρ = {number(measured.rho)}"
    )
    where(*paths)
