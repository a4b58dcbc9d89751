"""``immunis immunize``: a recipe's model defended, with everything that is released of it."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from immunis.cli import options
from immunis.cli.console import again, bar, estimate, fail, finish, refuse, take


@options.app.command()
def immunize(
    recipe: options.Recipe,
    data: options.Data = None,
    allow_outside: options.Outside = False,
    output: options.Output = None,
    device: options.Device = "auto",
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
    allow_broken: options.AllowBroken = False,
    fail_if: options.FailIf = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Immunize a model as a recipe says, and write weights, configuration, record and cards.

    A network is trained on one device or many; torchrun works too. If the primary score falls too
    far, the files go to OUTPUT/broken and the command fails. Figures for --fail-if: primary,
    primary_after, rho, rir.
    """
    from safetensors.torch import save

    from immunis.core.distributed import rank
    from immunis.core.errors import LostPrimaryWarning
    from immunis.core.extras import need
    from immunis.core.releases import release
    from immunis.core.settings import require
    from immunis.recipes import load_recipe
    from immunis.recipes.pipeline import Pipeline
    from immunis.report.card import render
    from immunis.report.export import files, weights
    from immunis.report.ratios import ratio
    from immunis.report.tables import definition_table, immunize_table
    from immunis.report.text import lost_primary, lost_some
    from immunis.training.settings import hardware_of

    chosen = load_recipe(recipe, allow_outside)
    require(bool(chosen.method), f"recipe {recipe} has no [method]; add one (see: immunis list).")
    conditions = options.conditions(fail_if, "immunize")
    given = {"device": device, "devices": devices, "nodes": nodes, "strategy": strategy}
    hardware = hardware_of({**given, "precision": precision, "compile": compiled})
    if dry_run:
        from immunis.recipes.estimate import estimate_immunize

        estimate(
            chosen.name,
            json,
            lambda: estimate_immunize(Pipeline(chosen, chosen.tasks(data), hardware)),
        )
        return
    if wandb is not None:
        need("wandb")
    warnings.simplefilter("ignore", LostPrimaryWarning)  # words and the last line say it
    folder = take(output or f"immunis-runs/{chosen.name}-{chosen.method['name']}", "immunize")
    state = folder / "training" if chosen.is_trained else None
    kept = f"continue with: {again('--resume')}" if state else "no result was written."
    with bar(f"immunize {chosen.name}", json, kept) as report:
        pipeline = Pipeline(chosen, chosen.tasks(data), hardware, state, report)
        result = pipeline.immunize(resume=resume, wandb=wandb)
        repeat = {"recipe": chosen.to_dict(), "arguments": pipeline.arguments()}
        record = result.record.with_settings(**repeat)
        made = {**files(result.model, record), "card.html": render(record)}
        if not chosen.is_trained:
            made["head.safetensors"] = weights(result.head)
        if (scale := pipeline.tasks.primary.scale) is not None:  # new inputs need it too
            made["inputs.safetensors"] = save(scale._asdict())
    lost = "" if allow_broken else lost_primary(record)
    if lost:
        made = {f"broken/{name}": content for name, content in made.items()}
    if rank() == 0:
        tables = [immunize_table(record), definition_table(record)]
        words = f"{ratio(record)} {lost_some(record)}".strip()
        finish(record, release(folder, made), json, tables, words)
    if lost:
        refuse(f"{lost} It is refused, and kept in {folder / 'broken'}; see --allow-broken.")
    fail(record, conditions)
