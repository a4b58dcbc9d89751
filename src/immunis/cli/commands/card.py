"""``immunis card``: one page about a model, made from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from immunis.cli.console import where
from immunis.cli.options import app


@app.command()
def card(
    records: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORD", help="record.json files of earlier commands, or folders of runs."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="An .html or .md file; default: card.html in the folder of the first record.",
        ),
    ] = None,
    about: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file with what only you can say: licence, threshold, contact, ... "
            "(docs/card.md lists its keys)."
        ),
    ] = None,
) -> None:
    """Write a card: one self-contained HTML page that ships with the weights.

    It leads with the highest score that any attacker reached, and a verdict against a threshold.
    Audits of the same models are judged together; other records stand side by side. If the output
    ends in .md, write a Hugging Face model card with the same facts.
    """
    from immunis.report.about import About
    from immunis.report.card import KINDS, write_card
    from immunis.report.runs import collected

    first = records[0] if records[0].is_dir() else records[0].parent
    said = None if about is None else About.load(about)
    path = output or first / "card.html"
    where(write_card(path, *collected(records, KINDS), about=said))
