"""``immunis list``: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from immunis.cli.console import show
from immunis.cli.options import app
from immunis.report.format import Table


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="methods, attacks, recipes or sources; all if left out.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the methods with their settings, the attacks, the bundled recipes, the data sources."""
    from json import dumps

    from immunis.core.errors import unknown
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
