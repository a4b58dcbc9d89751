"""``immunis immunize``: a recipe's model defended, with everything that is released of it."""

from __future__ import annotations

from typing import Annotated

import typer

from immunis.cli import options
from immunis.cli.console import again, bar, estimate, finish, take


@options.app.command()
def immunize(
    recipe: options.Recipe,
    data: options.Data = None,
    output: options.Output = None,
    device: options.Device = "cpu",
    devices: Annotated[int, typer.Option(min=1, help="Devices of this machine to train on.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines to train on.")] = 1,
    strategy: Annotated[str, typer.Option(help="auto, ddp or fsdp.")] = "auto",
    precision: options.Precision = "32-true",
    compiled: Annotated[bool, typer.Option("--compile", help="Use torch.compile.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the checkpoint in the output folder.")
    ] = False,
    wandb: Annotated[
        str | None, typer.Option(help="Weights & Biases project to log to. Needs the extra: track.")
    ] = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Immunize a model as a recipe says, and write weights, configuration, record and cards.

    A network is trained on one device or many; torchrun works too.
    """
    from immunis.core.distributed import rank
    from immunis.core.files import release
    from immunis.core.settings import require
    from immunis.recipes import load_recipe
    from immunis.recipes.estimate import estimate_immunize
    from immunis.recipes.pipeline import immunize_recipe
    from immunis.report.card import render
    from immunis.report.export import files, weights
    from immunis.report.tables import immunize_table
    from immunis.report.text import ratio
    from immunis.training.hardware import hardware_of
    from immunis.training.tracking import need_wandb

    chosen = load_recipe(recipe)
    require(bool(chosen.method), f"recipe {recipe} has no [method]; add one (see: immunis list).")
    given = {"device": device, "devices": devices, "nodes": nodes, "strategy": strategy}
    hardware = hardware_of({**given, "precision": precision, "compile": compiled})
    if dry_run:
        estimate(chosen.name, json, lambda: estimate_immunize(chosen, chosen.tasks(data), hardware))
        return
    if wandb is not None:
        need_wandb()
    folder = take(output or f"immunis-runs/{chosen.name}-{chosen.method['name']}", "immunize")
    state = folder / "training" if chosen.is_trained else None
    kept = f"continue with: {again('--resume')}" if state else "no result was written."
    with bar(f"immunize {chosen.name}", json, kept) as report:
        tasks, how = chosen.tasks(data), (hardware, state, report)
        result = immunize_recipe(chosen, tasks, *how, resume=resume, wandb=wandb)
        record = result.record.with_settings(recipe=chosen.to_dict())
        made = {**files(result.model, record), "card.html": render(record)}
        if not chosen.is_trained:
            made["head.safetensors"] = weights(result.head)
    if rank() == 0:
        finish(record, release(folder, made), json, [immunize_table(record)], ratio(record))
