"""``immunis card``: one page about a model, made from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from immunis.cli.console import where
from immunis.cli.options import Records, app


@app.command()
def card(
    records: Records,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="An .html or .md file; default: card.html beside the first record.",
        ),
    ] = None,
) -> None:
    """Write the card of a record, or of several side by side, as one self-contained HTML page.

    If the output ends in .md, write a Hugging Face model card with the same facts.
    """
    from immunis.core.records import Record
    from immunis.report.card import write_card

    path = output or records[0].parent / "card.html"
    where(write_card(path, *map(Record.load, records)))
