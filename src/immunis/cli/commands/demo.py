"""``immunis demo``: the first run."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from immunis.cli import options
from immunis.cli.commands.audit import show
from immunis.cli.console import bar, finish, take

WORDS = (
    "RIR: factor on the harmful over factor on the primary condition number, at most RIR*. "
    "prim.: primary test accuracy (%). @n, ridge: harmful test accuracy (%) of an attacker who "
    "trains a probe on samples of their own, by n descent steps or in closed form. frontier makes "
    "RIR largest by lowering both condition numbers, and so fails Definition 3.1 (a)."
)
ATTACKS = "ridge", "mlp", "knn", "maps", "earlier_layer", "finetune_all", "reinit_last"
QUICK = {"attacks": ATTACKS, "originals": 1, "variants": 1, "seeds": 1, "budget": 100}


@options.app.command()
def demo(
    output: options.Output = None,
    linear: Annotated[
        bool, typer.Option("--linear", help="Show the linear theory: every method in closed form.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the run.")] = 0,
    json: options.Json = False,
) -> None:
    """Defend a small network on the bundled digits, and attack it: about a minute.

    The network knows the digits 0 to 4. The defence makes 5 to 9 hard to learn from it. Attackers
    probe every layer and fine-tune the network, before and after.
    """
    (_linear if linear else _network)(output, seed, json)


def _network(output: str | None, seed: int, json: bool) -> None:
    from immunis.core.jobs import Run
    from immunis.recipes import load_recipe
    from immunis.recipes.pipeline import Pipeline

    folder = take(output or "immunis-runs/demo", "audit")
    recipe = load_recipe("digits-cnn")
    recipe = dataclasses.replace(recipe, seed=seed, audit={**recipe.audit, **QUICK})
    with bar("demo", json) as report:
        run = Run(folder=folder / "attacks", progress=report)
        pipeline = Pipeline(recipe, recipe.tasks(), folder=folder / "models", progress=report)
        record = pipeline.audit(run=run).record
    show(record, folder, json)


def _linear(output: str | None, seed: int, json: bool) -> None:
    from immunis.core.releases import release
    from immunis.recipes.demo import demo as run
    from immunis.report import figures
    from immunis.report.card import render
    from immunis.report.tables import definition_table, demo_table

    folder = take(output or "immunis-runs/demo-linear", "demo")
    with bar("demo --linear", json) as report:
        record = run(seed, report)
        drawn = ("overview", "spectra", "norm_ratios")
        files = {f"{name}.png": getattr(figures, name)(record) for name in drawn}
        files |= {"record.json": record.to_file(), "card.html": render(record)}
    tables = [demo_table(record), definition_table(record)]
    finish(record, release(folder, files), json, tables, WORDS)
