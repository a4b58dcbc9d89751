"""The command line: reads arguments, calls the library, prints. No logic lives here.

Exit codes: 0 done; 1 the run failed (cannot write, diverged); 2 the request cannot be met
as it is (bad data, unknown name, bad setting); 130 interrupted.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated

import typer

from immunis.console import (
    again,
    bar,
    explain,
    manner,
    say,
    show,
    show_estimate,
    show_warning,
    take,
    where,
)
from immunis.errors import ImmunisError
from immunis.formats import Table
from immunis.options import (
    Attacks,
    Cluster,
    Data,
    Device,
    Devices,
    DryRun,
    Json,
    Output,
    Precision,
    Recipe,
    Workers,
    app,
)


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
    from immunis.card import render
    from immunis.errors import SettingsError
    from immunis.export import files, weights
    from immunis.files import make_folder, release
    from immunis.lineup import defended, original, trains
    from immunis.plan import hardware_of
    from immunis.processes import rank
    from immunis.recipes import load_recipe
    from immunis.statements import ratio
    from immunis.tables import immunize_table

    chosen = load_recipe(recipe)
    if not chosen.method:
        raise SettingsError(f"recipe {recipe} has no [method]; add one (see: immunis list).")
    method = chosen.method["name"]
    hardware = hardware_of({
        "device": device, "devices": devices, "nodes": nodes, "strategy": strategy,
        "precision": precision, "compile": compiled,
    })  # fmt: skip
    if dry_run:
        from immunis.estimate import estimate_immunize

        with bar(f"estimate {chosen.name}", json):
            found = estimate_immunize(chosen, chosen.tasks(data), hardware)
        show_estimate(found, json)
        return
    trained = trains(chosen, hardware)
    folder = take(output or f"immunis-runs/{chosen.name}-{method}", "immunize")
    state = make_folder(folder / "training") if trained else None
    kept = {"kept": f"{again('--resume')} goes on from {state}."} if state else {}
    with bar(f"immunize {chosen.name}", json, **kept) as report:
        tasks = chosen.tasks(data)
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


@app.command()
def audit(
    recipe: Recipe,
    data: Data = None,
    output: Output = None,
    attacks: Attacks = None,
    methods: Annotated[
        str | None, typer.Option(help="Some of the recipe's defences, separated by commas.")
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Folder of trained networks; default OUTPUT/models.")
    ] = None,
    workers: Workers = 1,
    cluster: Cluster = None,
    device: Device = "cpu",
    precision: Precision = "32-true",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run attacks against a model, its defences and its controls; the worst case leads.

    Finished attacks are kept in the output folder: the same command goes on where it stopped.
    """
    from immunis.card import render
    from immunis.files import release
    from immunis.lineup import audit_recipe as run
    from immunis.plan import hardware_of
    from immunis.recipes import load_recipe
    from immunis.statements import beside_tables
    from immunis.tables import audit_table, models_table, transfer_table, worst_case_table

    chosen = load_recipe(recipe)
    hardware = hardware_of({"device": device, "precision": precision})
    names = None if methods is None else [name.strip() for name in methods.split(",")]
    if dry_run:
        from immunis.estimate import estimate_audit

        with bar(f"estimate {chosen.name}", json):
            found = estimate_audit(chosen, chosen.tasks(data), attacks, names, workers, hardware)
        show_estimate(found, json)
        return
    folder = take(output or f"immunis-runs/{chosen.name}-audit", "audit")
    resume = f"finished attacks are kept in {folder}; {again()} goes on from there."
    with bar(f"audit {chosen.name}", json, resume) as report:
        result = run(
            chosen,
            data,
            attacks=attacks,
            methods=names,
            workers=workers,
            cluster=cluster,
            folder=folder / "attacks",
            models_folder=models or folder / "models",
            device=device,
            hardware=hardware,
            progress=report,
        )
    made = {"record.json": result.record.to_file(), "card.html": render(result.record)}
    paths = release(folder, made)
    if json:
        typer.echo(result.to_json())
        return
    for table in (worst_case_table, audit_table, transfer_table, models_table):
        if table is not transfer_table or result.record.figures["transfer"]:
            show(table(result.record))
    explain(beside_tables(result.record))
    where(*paths)


@app.command()
def card(
    records: Annotated[
        list[Path],
        typer.Argument(metavar="RECORD", help="record.json of demo, immunize or audit."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="card.html, or README.md for a model card; beside the first."
        ),
    ] = None,
) -> None:
    """Write the card of a record, or of several side by side: one self-contained HTML page.

    A file that ends in .md becomes a Hugging Face model card with the same facts.
    """
    from immunis.card import write_card
    from immunis.records import Record as Run

    path = output or records[0].parent / "card.html"
    where(write_card(path, *map(Run.load, records)))


@app.command()
def figures(
    records: Annotated[
        list[Path],
        typer.Argument(metavar="RECORD", help="record.json of demo, immunize, audit or reproduce."),
    ],
    output: Output = None,
) -> None:
    """Draw the figures of records, as a paper would print them: PDF, and PNG to look at."""
    from immunis.gallery import write_figures

    folder = take(output or str(records[0].parent / "figures"))
    with bar("figures", False):
        write_figures(records, folder)
    where(folder)


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
    from immunis.errors import unknown
    from immunis.estimate import estimate_jobs
    from immunis.reproduce import EXPERIMENTS, planned
    from immunis.reproduce import reproduce as run
    from immunis.reproduce.digits import read_pairs
    from immunis.reproduce.report import write
    from immunis.reproduce.tables import tables

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
        "own reaches in n descent steps, or in closed form. All tables: tables.md.",
    )
    where(*paths)


@app.command()
def demo(
    output: Output = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seeds the data split.")] = 0,
    json: Json = False,
) -> None:
    """Run every method on the bundled digits and show what an attacker still reads."""
    from immunis import figures
    from immunis.card import render
    from immunis.demo import demo as run
    from immunis.files import release
    from immunis.tables import demo_table

    folder = take(output or "immunis-runs/demo", "demo")
    with bar("demo", json) as report:
        record = run(seed, report)
        card = render(record)
    drawn = ("overview", "spectra", "norm_ratios")
    paths = release(folder, {
        "record.json": record.to_file(),
        **{f"{name}.png": getattr(figures, name)(record) for name in drawn},
        "card.html": card,
    })  # fmt: skip
    if json:
        typer.echo(record.to_json())
        return
    show(demo_table(record))
    explain(
        "RIR: factor on the harmful over factor on the primary condition number, at most RIR*. "
        "prim.: primary test accuracy (%). @n, ridge: harmful test accuracy (%) of an attacker who "
        "trains a probe on samples of their own, by n descent steps or in closed form.",
    )
    where(*paths)


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="methods, attacks, recipes or sources; all if left out.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the methods with their settings, the attacks, the bundled recipes, the data sources."""
    from json import dumps

    from immunis.errors import unknown
    from immunis.recipes import catalogue

    found = catalogue()
    if what and what not in found:
        raise unknown("list", what, found)
    found = {what: found[what]} if what else found
    if json:
        typer.echo(dumps(found, indent=1, ensure_ascii=False))
        return
    for kind, entries in found.items():
        rows = [[e["name"], e["summary"], e.get("settings", "")] for e in entries]
        label = "family" if kind == "attacks" else "settings and defaults"
        settings = [label] if any(row[2] for row in rows) else []
        width = 2 + len(settings)
        show(Table(kind, ["name", "what it is", *settings], [r[:width] for r in rows]), text=True)


def main() -> None:
    """Entry point: no traceback for a user's mistake."""
    warnings.showwarning = show_warning
    try:
        app()
    except ImmunisError as error:
        if manner.verbose:
            say(traceback.format_exc())
        say(f"error: {error}", "red")
        sys.exit(2 if isinstance(error, ValueError) else 1)
    except KeyboardInterrupt:
        say("interrupted.")
        sys.exit(130)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "alloc" not in str(error):
            raise  # torch's own, of either kind, says that it tried to allocate
        say(f"error: there is not enough memory for this ({str(error)[:200]}).", "red")
        sys.exit(1)
    except OSError as error:  # stdout is closed or its disk is full
        say(f"error: {error.strerror or error}", "red")
        sys.exit(1)


if __name__ == "__main__":
    main()
