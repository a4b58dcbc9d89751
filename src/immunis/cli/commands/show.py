"""``immunis card`` and ``immunis figures``: records as pages and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from immunis.cli.console import bar, take, where
from immunis.cli.options import Output, app


@app.command()
def card(
    records: Annotated[
        list[Path], typer.Argument(metavar="RECORD", help="record.json of demo, immunize or audit.")
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
    from immunis.core.records import Record as Run
    from immunis.report.card import write_card

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
    import immunis.paper.figures  # noqa: F401 - adds those of a reproduction
    from immunis.report.gallery import write_figures

    folder = take(output or str(records[0].parent / "figures"))
    with bar("figures", False):
        write_figures(records, folder)
    where(folder)
