"""``immunis measure``: spectra of a task pair, and how far it can be immunized."""

from __future__ import annotations

from immunis.cli import options
from immunis.cli.console import bar, finish, take


@options.app.command()
def measure(
    recipe: options.Recipe,
    data: options.Data = None,
    output: options.Output = None,
    device: options.Device = "cpu",
    precision: options.Precision = "32-true",
    json: options.Json = False,
) -> None:
    """Measure a task pair: both spectra, and RIR*, the ceiling for every linear defence.

    If the recipe has a network, its features are measured; otherwise the inputs are.
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
    words = (
        f"ceiling RIR* = {number(measured.ceiling)}, with a ridge of 1e-3: "
        f"{number(measured.ridge_ceiling)}; free directions: {measured.free_directions}; "
        f"harmful labels a linear probe explains: ρ = {number(measured.rho)}"
    )
    paths = release(folder, {"record.json": record.to_file()})
    finish(record, paths, json, [measure_table(record)], words)
