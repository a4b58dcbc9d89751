"""``immunis reproduce``: the paper's linear experiments."""

from __future__ import annotations

from typing import Annotated

import typer

from immunis.cli.console import again, bar, explain, show, show_estimate, take, where
from immunis.cli.options import Cluster, Data, DryRun, Json, Output, Workers, app


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="house-prices or mnist.")],
    data: Data = None,
    output: Output = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed; six digit pairs.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Repeats; the paper's 5 (house-prices) or 3 (mnist).")
    ] = None,
    pairs: Annotated[
        str | None, typer.Option(help="Digit pairs, PRIMARY-HARMFUL, as in 3-7,0-1 (mnist only).")
    ] = None,
    workers: Workers = 1,
    cluster: Cluster = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Get House Prices from OpenML where no file is found.")
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run the paper's linear experiments again, beside what it printed and what it should be.

    On two cores house-prices takes about three minutes, mnist an hour; --quick one minute;
    --dry-run times one run of each kind. Finished runs are kept in the output folder: the same
    command goes on where it stopped.
    """
    from immunis.core.errors import unknown
    from immunis.paper import EXPERIMENTS, planned
    from immunis.paper import reproduce as run
    from immunis.paper.digits import read_pairs
    from immunis.paper.report import write
    from immunis.paper.tables import tables
    from immunis.recipes.estimate import estimate_jobs

    if experiment not in EXPERIMENTS:
        raise unknown("experiment", experiment, EXPERIMENTS)
    chosen = None if pairs is None else read_pairs(pairs)
    if dry_run:
        with bar(f"estimate {experiment}", json):
            jobs = planned(experiment, data, quick=quick, seeds=seeds, pairs=chosen, fetch=fetch)
            found = estimate_jobs(jobs, workers)
        show_estimate(found, json)
        return
    name = f"{experiment}-quick" if quick else experiment
    folder = take(output or f"immunis-runs/reproduce-{name}", "reproduce")
    resume = f"finished runs are kept in {folder}; {again()} goes on from there."
    with bar(f"reproduce {name}", json, resume) as report:
        record = run(
            experiment, data, quick=quick, seeds=seeds, pairs=chosen, workers=workers,
            cluster=cluster, folder=folder / "runs", fetch=fetch, progress=report,
        )  # fmt: skip
    paths = write(record, folder)
    if json:
        typer.echo(record.to_json())
        return
    for table in tables(record)[:2]:
        show(table, text=True)
    explain(
        "released κ: as the paper's code computes it; honest κ: over the non-zero directions only; "
        "RIR*: the most any linear map can reach. @n, ridge: what an attacker with data of their "
        "own reaches in n descent steps, or in closed form. All tables: tables.md."
    )
    where(*paths)
