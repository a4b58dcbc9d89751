"""``immunis list``: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from immunis.cli.console import manner, show, show_json
from immunis.cli.options import app
from immunis.report.markup import Table


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="methods, attacks, recipes or sources; default: all of them.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List methods with their settings, attacks, bundled recipes and data sources.

    With --quiet it prints names alone, one a line.
    """
    from immunis.core.errors import unknown
    from immunis.recipes import catalogue

    found = catalogue()
    if what and what not in found:
        raise unknown("list", what, found)
    found = {what: found[what]} if what else found
    if json:
        show_json(found)
        return
    if manner.quiet:  # names alone: they are the result
        for entries in found.values():
            for entry in entries:
                typer.echo(entry["name"])
        return
    for kind, entries in found.items():
        rows = [list(entry.values()) for entry in entries]
        last = {"methods": ["settings and defaults"], "attacks": ["family"]}.get(kind, [])
        show(Table(kind, ["name", "what it is", *last], rows), text=True)
