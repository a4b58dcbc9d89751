"""``immunis push``: a released model, to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from immunis.cli import options
from immunis.cli.console import bar, out, say, show
from immunis.core.records import printable
from immunis.report.markup import Table


@options.app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="What immunis immunize or export wrote.")],
    repository: Annotated[str, typer.Argument(metavar="USER/NAME", help="Where to upload.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = (
        False
    ),
    allow_broken: options.AllowBroken = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be uploaded; needs no network.")
    ] = False,
) -> None:
    """Upload a released model to the Hugging Face hub, with its README and record.

    It uploads the files of the release alone, and checks each against its checksum. Checkpoints
    stay.
    """
    from immunis.report import hub

    upload = hub.planned(folder, repository, allow_broken)
    for note in upload.notes:
        say(f"note: {note}", "yellow")
    if dry_run:
        rows = [[name, f"{size:,}"] for name, size in upload.sizes.items()]
        show(Table(f"would be uploaded to {repository}", ["file", "bytes"], rows))
        out.print(printable(upload.readme), markup=False, highlight=False, soft_wrap=True)
        out.print("nothing was uploaded (--dry-run)", markup=False)
        return
    with bar(f"push {repository}", False, "some files may have been uploaded; run it again."):
        address = hub.push(upload, private)
    out.print(f"uploaded: {printable(address)}", markup=False, soft_wrap=True)
