"""``immunis list``: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from immunis.cli.console import out, show
from immunis.cli.options import app
from immunis.report.format import Table


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="methods, attacks, recipes or sources; default: all of them.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the methods with their settings, the attacks, the bundled recipes, the data sources."""
    from immunis.core.errors import unknown
    from immunis.recipes import catalogue

    found = catalogue()
    if what and what not in found:
        raise unknown("list", what, found)
    found = {what: found[what]} if what else found
    if json:
        out.print_json(data=found)
        return
    for kind, entries in found.items():
        rows = [list(entry.values()) for entry in entries]
        last = {"methods": ["settings and defaults"], "attacks": ["family"]}.get(kind, [])
        show(Table(kind, ["name", "what it is", *last], rows), text=True)
