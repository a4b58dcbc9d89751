"""How the command line speaks: tables, progress, warnings, and where the result is."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import rich.progress
import rich.table
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape

from immunis.core.distributed import first
from immunis.core.errors import InputError, OutputError
from immunis.core.files import hold
from immunis.core.progress import Progress
from immunis.core.records import Record, printable
from immunis.report.format import Table

out, err = Console(), Console(stderr=True)
held = ExitStack()  # output folders, until the command ends
manner = SimpleNamespace(quiet=False, verbose=False)  # how much to say


def say(line: str, style: str | None = None) -> None:
    """Print a line on stderr, control characters written out."""
    err.print(printable(line), style=style, markup=False, highlight=False, soft_wrap=True)


def show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    """Print a warning in one line, by the first process only; stands in for Python's own."""
    if not manner.quiet and first():
        say(f"warning: {message}", "yellow")


def again(option: str = "") -> str:
    """Return the command as it was given, with one more option."""
    words = [*sys.argv[1:], *([option] if option and option not in sys.argv else [])]
    return f"immunis {shlex.join(words)}"


@contextmanager
def bar(title: str, quiet: bool, kept: str = "no result was written.") -> Iterator[Progress]:
    """Show a progress bar on stderr; an interrupt ends the command and says what was kept."""
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TimeRemainingColumn(compact=True),
    )
    hidden = quiet or manner.quiet or manner.verbose
    with rich.progress.Progress(*columns, console=err, transient=True, disable=hidden) as progress:
        job, said = progress.add_task(escape(printable(title)), total=None), [""]

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
    """Print a table that has rows; with ``text``, cells are left-aligned and wrap."""
    if manner.quiet or not table.rows:
        return
    title, padding = escape(printable(table.title)), (0, 1) if text else 0
    grid = rich.table.Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=padding)
    for index, column in enumerate(table.columns):
        longest = max(len(row[index]) for row in table.rows)
        grid.add_column(
            escape(printable(column)),
            justify="left" if text or index == 0 else "right",
            no_wrap=not text and (index == 0 or longest > len(column)),  # else its head may break
            overflow="fold",
        )
    for row in table.rows:
        grid.add_row(*(escape(printable(cell)) for cell in row))
    out.print(grid)


def estimate(name: str, json: bool, call: Callable[[], Any]) -> None:
    """Print what a command would take: its parts, and the whole as the last line."""
    with bar(f"estimate {name}", json):
        found = call()
    if json:
        out.print_json(data=found.to_dict())
        return
    show(found.table())
    out.print(printable(found.sentence()), soft_wrap=True, highlight=False, markup=False)


def take(path: str | Path, kind: str = "") -> Path:
    """Hold an output folder for this command; refuse one in use, or with another kind of record."""
    folder = held.enter_context(hold(path))
    with suppress(InputError):  # no record, or a damaged one: it is replaced
        found = Record.load(folder / "record.json").kind if kind else ""
        if found != kind:
            told = f"holds the record of {found!r}, which this would replace"
            raise OutputError(f"output folder {folder} {told}. Give another --output.")
    return folder


def finish(
    record: Record,
    paths: Sequence[Path],
    json: bool,
    tables: Sequence[Table],
    words: str,
    text: bool = False,
) -> None:
    """Print a record that was written: as JSON, or as tables, words and where it is."""
    if json:
        typer.echo(record.to_json())
        return
    for table in tables:
        show(table, text)
    if not manner.quiet:
        out.print(printable(words), highlight=False, markup=False)
    where(*paths)


def where(*paths: Path) -> None:
    """Print where the result is; always the last line."""
    line = f"written: {', '.join(map(str, paths))}"
    out.print(printable(line), soft_wrap=True, markup=False)
