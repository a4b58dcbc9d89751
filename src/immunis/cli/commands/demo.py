"""``immunis demo``: the first run."""

from __future__ import annotations

from typing import Annotated

import typer

from immunis.cli import options
from immunis.cli.console import bar, finish, take

WORDS = (
    "RIR: factor on the harmful over factor on the primary condition number, at most RIR*. "
    "prim.: primary test accuracy (%). @n, ridge: harmful test accuracy (%) of an attacker who "
    "trains a probe on samples of their own, by n descent steps or in closed form."
)


@options.app.command()
def demo(
    output: options.Output = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the data split.")] = 0,
    json: options.Json = False,
) -> None:
    """Run every linear method on the bundled digits and show what an attacker still learns."""
    from immunis.core.files import release
    from immunis.recipes.demo import demo as run
    from immunis.report import figures
    from immunis.report.card import render
    from immunis.report.tables import demo_table

    folder = take(output or "immunis-runs/demo", "demo")
    with bar("demo", json) as report:
        record = run(seed, report)
        drawn = ("overview", "spectra", "norm_ratios")
        files = {f"{name}.png": getattr(figures, name)(record) for name in drawn}
        files |= {"record.json": record.to_file(), "card.html": render(record)}
    finish(record, release(folder, files), json, [demo_table(record)], WORDS)
