"""``immunis view``: a local page that lists runs and shows their cards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from immunis.cli.console import out, say
from immunis.cli.options import app


@app.command()
def view(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder of runs.", show_default=True)
    ] = Path("immunis-runs"),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8088,
) -> None:
    """List all runs below a folder, and show their cards, on a page for this machine only.

    It makes the cards from the records and writes no file. Ctrl-C ends it.
    """
    from immunis.core.errors import InputError, OutputError
    from immunis.report.view import server

    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; expected one that holds runs.")
    try:
        served = server(folder, port)
    except OSError as error:
        raise OutputError(f"port {port}: {error.strerror}. Give another --port.") from error
    with served:
        out.print(f"http://127.0.0.1:{served.server_port}/", highlight=False, markup=False)
        try:
            served.serve_forever()
        except KeyboardInterrupt:
            say("ended.")
