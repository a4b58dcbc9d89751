"""``immunis reproduce``: the paper's experiments."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

from immunis.cli import options
from immunis.cli.console import again, bar, estimate, finish, take

WORDS = (
    "released κ: as the paper's code computes it; honest κ: over the non-zero directions only; "
    "RIR*: the most any linear map can reach; 3.1 (a), (b): runs in which the harmful task became "
    "harder, and the primary one did not, with the honest κ. @n, ridge: what an attacker with data "
    "of their own reaches in n descent steps, or in closed form. All tables: tables.md."
)

DEEP_WORDS = (
    "released: trained as the paper's code does; ours: as the recipe says. (i), (ii), RIR_θ₀: the "
    "change of κ of the harmful and the primary task, and its ratio. @n: accuracy after n epochs."
)


@options.app.command()
def reproduce(
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="house-prices, mnist or deep.")
    ],
    data: options.Data = None,
    output: options.Output = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a small part, with one seed, to try the command.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Repeats; default: the paper's 5 (house-prices) or 3.")
    ] = None,
    pairs: Annotated[
        str | None, typer.Option(help="Digit pairs PRIMARY-HARMFUL, such as 3-7,0-1 (mnist only).")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Network and data: a bundled recipe or a TOML file (deep only)."),
    ] = None,
    device: options.Device = "cpu",
    precision: options.Precision = "32-true",
    workers: options.Workers = 1,
    cluster: options.Cluster = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Download House Prices from OpenML if it is missing.")
    ] = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Run the paper's experiments again, beside the numbers that it printed.

    On two cores house-prices takes about fifteen minutes. mnist trains 2,000 runs of a minute each
    on a core: give it --device cuda and many --workers, or few --pairs. deep trains networks: give
    it --device cuda. Its default recipe is a stand-in for the paper's data.
    Finished runs are kept in the output folder. Run the same command again to continue an
    interrupted run.
    """
    from immunis.core.jobs import Run
    from immunis.core.settings import require
    from immunis.paper import planned, settings_of, write
    from immunis.paper import reproduce as run
    from immunis.paper.digits import read_pairs
    from immunis.paper.tables import tables_of
    from immunis.recipes.estimate import estimate_jobs
    from immunis.training.settings import device_of, hardware_of

    if experiment == "deep":
        require(pairs is None, "--pairs is for mnist, not for deep, which has one pair of tasks.")
        require(not fetch, "--fetch is for house-prices, not for deep.")
        for name, given in {"cluster": cluster, "workers": workers > 1}.items():
            require(
                not given, f"--{name} is not for deep, which runs in one process: leave it out."
            )
        hardware = hardware_of({"device": device, "precision": precision})
        _deep(recipe, data, output, quick, seeds, hardware, dry_run, json)
        return
    require(recipe is None, f"--recipe is for deep, not for {experiment}.")
    chosen = settings_of(experiment, quick, seeds, None if pairs is None else read_pairs(pairs))
    if dry_run:
        plan = partial(planned, experiment, data, chosen, fetch, device_of(device))
        estimate(experiment, json, lambda: estimate_jobs(plan()[0], workers))
        return
    name = f"{experiment}-quick" if quick else experiment
    folder = take(output or f"immunis-runs/reproduce-{name}", "reproduce")
    kept = f"finished runs are kept in {folder}; continue with: {again()}"
    with bar(f"reproduce {name}", json, kept) as report:
        where = Run(workers, cluster, folder / "runs", device_of(device), report)
        record = run(experiment, data, chosen, fetch=fetch, run=where)
    finish(record, write(record, folder), json, tables_of(record)[:2], WORDS, text=True)


def _deep(
    name: str | None,
    data: str | None,
    output: str | None,
    quick: bool,
    seeds: int | None,
    hardware: Any,
    dry_run: bool,
    json: bool,
) -> None:
    """Run table 3 on the network and the data of a recipe."""
    from immunis.paper import deep, write
    from immunis.paper.deep_network import Settings, paper_row
    from immunis.paper.tables import tables_of
    from immunis.recipes import load_recipe
    from immunis.recipes.pipeline import Pipeline

    recipe, settings = load_recipe(name or deep.DEFAULT), deep.QUICK if quick else Settings()
    paper_row(recipe)  # a recipe of another network is refused before its data is read
    settings = replace(settings, seeds=seeds or settings.seeds)
    title = f"deep-{recipe.name}{'-quick' if quick else ''}"
    recipe = deep.rehearsal(recipe) if quick else recipe

    def pipeline(*how: Any) -> Pipeline:
        tasks = recipe.tasks(data)
        return Pipeline(recipe, deep.few_rows(tasks) if quick else tasks, hardware, *how)

    if dry_run:
        estimate(title, json, lambda: deep.estimated(pipeline(), settings))
        return
    folder = take(output or f"immunis-runs/reproduce-{title}", "reproduce")
    kept = f"finished networks are kept in {folder}; continue with: {again()}"
    with bar(f"reproduce {title}", json, kept) as report:
        report("reading images", 0.0)
        record = deep.reproduce(pipeline(folder / "networks", report), settings)
    finish(record, write(record, folder), json, tables_of(record), DEEP_WORDS, text=True)
