"""``immunis immunize``: a recipe's model defended, with all that is released of it."""

from __future__ import annotations

from typing import Annotated

import typer

from immunis.cli.console import again, bar, explain, show, show_estimate, take, where
from immunis.cli.options import Data, Device, Devices, DryRun, Json, Output, Precision, Recipe, app


@app.command()
def immunize(
    recipe: Recipe,
    data: Data = None,
    output: Output = None,
    device: Device = "cpu",
    devices: Devices = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    strategy: Annotated[str, typer.Option(help="auto, ddp or fsdp.")] = "auto",
    precision: Precision = "32-true",
    compiled: Annotated[bool, typer.Option("--compile", help="Use torch.compile.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint in the output folder.")
    ] = False,
    wandb: Annotated[str | None, typer.Option(help="Weights & Biases project.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Immunize a model as a recipe says; write weights, configuration, record and cards.

    A network is trained, on one device or many; torchrun works too.
    """
    from immunis.core.distributed import rank
    from immunis.core.errors import SettingsError
    from immunis.core.files import make_folder, release
    from immunis.recipes import load_recipe
    from immunis.recipes.pipeline import defended, original, rehearse, trains
    from immunis.report.card import render
    from immunis.report.export import files, weights
    from immunis.report.tables import immunize_table
    from immunis.report.text import ratio
    from immunis.training.hardware import hardware_of
    from immunis.training.tracking import need_wandb

    chosen = load_recipe(recipe)
    if not chosen.method:
        raise SettingsError(f"recipe {recipe} has no [method]; add one (see: immunis list).")
    method = chosen.method["name"]
    hardware = hardware_of({
        "device": device, "devices": devices, "nodes": nodes, "strategy": strategy,
        "precision": precision, "compile": compiled,
    })  # fmt: skip
    if dry_run:
        from immunis.recipes.estimate import estimate_immunize

        with bar(f"estimate {chosen.name}", json):
            found = estimate_immunize(chosen, chosen.tasks(data), hardware)
        show_estimate(found, json)
        return
    if wandb is not None:
        need_wandb()
    trained = trains(chosen, hardware)
    folder = take(output or f"immunis-runs/{chosen.name}-{method}", "immunize")
    state = make_folder(folder / "training") if trained else None
    kept = {"kept": f"{again('--resume')} goes on from {state}."} if state else {}
    with bar(f"immunize {chosen.name}", json, **kept) as report:
        tasks = chosen.tasks(data)
        rehearse(chosen, [chosen.method], tasks)
        model = original(chosen, tasks, hardware, state, report)
        result = defended(
            chosen,
            chosen.method,
            model,
            tasks,
            hardware=hardware,
            folder=state,
            resume=resume,
            wandb=wandb,
            progress=report,
        )
        record = result.record.with_settings(recipe=chosen.to_dict())
        card = render(record)
    if rank() > 0:
        return
    made = {**files(result.model, record), "card.html": card}
    if not trained:
        made["head.safetensors"] = weights(result.head)
    paths = release(folder, made)
    if json:
        typer.echo(record.to_json())
        return
    show(immunize_table(record))
    explain(ratio(record))
    where(*paths)
