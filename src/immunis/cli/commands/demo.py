"""``immunis demo``: the first run."""

from __future__ import annotations

from typing import Annotated

import typer

from immunis.cli.console import bar, explain, show, take, where
from immunis.cli.options import Json, Output, app


@app.command()
def demo(
    output: Output = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seeds the data split.")] = 0,
    json: Json = False,
) -> None:
    """Run every method on the bundled digits and show what an attacker still reads."""
    from immunis.core.files import release
    from immunis.recipes.demo import demo as run
    from immunis.report import figures
    from immunis.report.card import render
    from immunis.report.tables import demo_table

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
        "trains a probe on samples of their own, by n descent steps or in closed form."
    )
    where(*paths)
