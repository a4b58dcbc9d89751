"""``immunis reproduce``: the paper's linear experiments."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from immunis.cli import options
from immunis.cli.console import again, bar, estimate, finish, take

WORDS = (
    "released κ: as the paper's code computes it; honest κ: over the non-zero directions only; "
    "RIR*: the most any linear map can reach. @n, ridge: what an attacker with data of their "
    "own reaches in n descent steps, or in closed form. All tables: tables.md."
)


@options.app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="house-prices or mnist.")],
    data: options.Data = None,
    output: options.Output = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed; six digit pairs.")] = False,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Repeats; default: the paper's 5 (house-prices) or 3 (mnist)."),
    ] = None,
    pairs: Annotated[
        str | None, typer.Option(help="Digit pairs PRIMARY-HARMFUL, such as 3-7,0-1 (mnist only).")
    ] = None,
    workers: options.Workers = 1,
    cluster: options.Cluster = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Download House Prices from OpenML if it is missing.")
    ] = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Run the paper's linear experiments again, beside the numbers that it printed.

    On two cores house-prices takes about three minutes and mnist an hour; --quick takes a minute.
    Finished runs are kept in the output folder. Run the same command again to continue an
    interrupted run.
    """
    from immunis.core.jobs import Run
    from immunis.paper import planned, settings_of, write
    from immunis.paper import reproduce as run
    from immunis.paper.digits import read_pairs
    from immunis.paper.tables import tables_of
    from immunis.recipes.estimate import estimate_jobs

    chosen = settings_of(experiment, quick, seeds, None if pairs is None else read_pairs(pairs))
    if dry_run:
        plan = partial(planned, experiment, data, chosen, fetch)
        estimate(experiment, json, lambda: estimate_jobs(plan()[0], workers))
        return
    name = f"{experiment}-quick" if quick else experiment
    folder = take(output or f"immunis-runs/reproduce-{name}", "reproduce")
    kept = f"finished runs are kept in {folder}; continue with: {again()}"
    with bar(f"reproduce {name}", json, kept) as report:
        where = Run(workers, cluster, folder / "runs", progress=report)
        record = run(experiment, data, chosen, fetch=fetch, run=where)
    finish(record, write(record, folder), json, tables_of(record)[:2], WORDS, text=True)
