"""``immunis measure``: spectra of a task pair, and how far it can be immunized."""

from __future__ import annotations

import typer

from immunis.console import bar, explain, show, take, where
from immunis.options import Data, Json, Output, Recipe, app


@app.command()
def measure(recipe: Recipe, data: Data = None, output: Output = None, json: Json = False) -> None:
    """Measure a task pair: both spectra, and the ceiling RIR* no linear defence can pass."""
    from immunis.files import release
    from immunis.formats import number
    from immunis.measure import measure as run
    from immunis.recipes import load_recipe
    from immunis.tables import measure_table

    chosen = load_recipe(recipe)
    chosen.check_measured()
    folder = take(output or f"immunis-runs/{chosen.name}-measure", "measure")
    with bar(f"measure {chosen.name}", json):
        tasks = chosen.tasks(data)
        measured = run(tasks.primary, tasks.harmful)
        record = measured.record.with_settings(recipe=chosen.to_dict())
    paths = release(folder, {"record.json": record.to_file()})
    if json:
        typer.echo(record.to_json())
        return
    show(measure_table(record))
    explain(
        f"ceiling RIR* = {number(measured.ceiling)}, with a ridge of 1e-3: "
        f"{number(measured.ridge_ceiling)}; free directions: {measured.free_directions}; "
        f"harmful labels a linear probe explains: ρ = {number(measured.rho)}",
    )
    where(*paths)
