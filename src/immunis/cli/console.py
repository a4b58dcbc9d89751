"""How the command line speaks: tables, progress, warnings, and where the result is."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.table
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from immunis.core.errors import InputError, OutputError
from immunis.core.records import Record, printable
from immunis.report.format import Table

out, err = Console(), Console(stderr=True)
held = ExitStack()  # output folders, until the command ends


@dataclass
class Manner:
    """How much to say: ``quiet`` for where the result is alone, ``verbose`` for every stage."""

    quiet: bool = False
    verbose: bool = False


manner = Manner()


def say(line: str, style: str | None = None) -> None:
    """Print a line on stderr as it is, control characters written out."""
    err.print(printable(line), style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def bar(
    title: str, quiet: bool, kept: str = "no result was written."
) -> Iterator[Callable[[str, float], None]]:
    """A progress bar on stderr; pulses until the first report."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(compact=True))
    hidden = quiet or manner.quiet or manner.verbose
    with Progress(*columns, console=err, transient=True, disable=hidden) as progress:
        job = progress.add_task(escape(printable(title)), total=None)

        said = [""]

        def report(what: str, share: float) -> None:
            line = f"{share:4.0%} {what}"
            if manner.verbose and line != said[0]:
                say(line)
            said[0] = line
            progress.update(job, description=escape(printable(what)), completed=share, total=1.0)

        try:
            yield report
        except KeyboardInterrupt:
            say(f"interrupted: {kept}")
            raise typer.Exit(130) from None


def show(table: Table, text: bool = False) -> None:
    """Print a table of figures; with ``text``, cells are left-aligned and wrap instead."""
    if manner.quiet:
        return
    grid = rich.table.Table(
        title=escape(printable(table.title)),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1) if text else 0,
    )
    for index, column in enumerate(table.columns):
        left = text or index == 0
        longest = max((len(row[index]) for row in table.rows), default=0)
        whole = index == 0 or longest > len(column)  # else its head alone may break
        grid.add_column(
            escape(printable(column)),
            justify="left" if left else "right",
            no_wrap=whole and not text,
            overflow="fold",
        )
    for row in table.rows:
        grid.add_row(*(escape(printable(cell)) for cell in row))
    out.print(grid)


def again(option: str = "") -> str:
    """The command as it was given, to be given again, with an option more."""
    words = [*sys.argv[1:], *([option] if option and option not in sys.argv else [])]
    return f"immunis {shlex.join(words)}"


def explain(text: str) -> None:
    """Say in words what a table shows."""
    if not manner.quiet:
        out.print(printable(text), highlight=False, markup=False)


def show_estimate(found: Any, json: bool) -> None:
    """Print an estimate: its parts, and the whole as the last line."""
    if json:
        from json import dumps

        typer.echo(dumps(found.to_dict(), indent=1))
        return
    show(found.table())
    out.print(printable(found.sentence()), soft_wrap=True, highlight=False, markup=False)


def take(path: str, kind: str = "") -> Path:
    """Hold an output folder until the command ends: nobody else writes to it meanwhile.

    Raises:
        OutputError: where the folder is in use, or holds a record of another kind.
    """
    from immunis.core.files import hold

    folder = held.enter_context(hold(path))
    with suppress(InputError):  # none there, or a damaged one: it is replaced
        found = Record.load(folder / "record.json").kind if kind else ""
        if found != kind:
            raise OutputError(
                f"output folder {folder} holds the record of {found!r}, which this would replace. "
                "Give another --output."
            )
    return folder


def where(*paths: Path) -> None:
    """Say where the result is; always the last line."""
    line = "written: " + ", ".join(str(path) for path in paths)
    out.print(printable(line), soft_wrap=True, markup=False)


def show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    """Stand in for ``warnings.showwarning``: one line, no source, by one process of a run."""
    from immunis.core.distributed import first

    if not manner.quiet and first():
        say(f"warning: {message}", "yellow")
