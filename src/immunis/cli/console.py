"""How the command line speaks: tables, progress, warnings, and where the result is."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console

from immunis.core.errors import InputError, OutputError
from immunis.core.locks import hold
from immunis.core.records import Record, printable
from immunis.report.markup import Table

if TYPE_CHECKING:
    from immunis.core.jobs import Progress  # it imports torch, which takes seconds

out, err = Console(), Console(stderr=True)
warned: set[str] = set()  # once in a command is enough
held = ExitStack()  # output folders, until the command ends
manner = SimpleNamespace(quiet=False, verbose=False)  # how much to say


def say(line: str, style: str | None = None) -> None:
    """Print a line on stderr, control characters written out."""
    err.print(printable(line), style=style, markup=False, highlight=False, soft_wrap=True)


def show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    """Print a warning in one line, by the first process only; stands in for Python's own."""
    from immunis.core.distributed import first

    if not manner.quiet and first() and str(message) not in warned:
        warned.add(str(message))
        say(f"warning: {message}", "yellow")


def again(option: str = "") -> str:
    """Return the command as it was given, with one more option."""
    words = [*sys.argv[1:], *([option] if option and option not in sys.argv else [])]
    return f"immunis {shlex.join(words)}"


@contextmanager
def bar(title: str, quiet: bool, kept: str = "no result was written.") -> Iterator[Progress]:
    """Show progress on stderr; an interrupt ends the command and says what was kept."""
    from immunis.core.progress import shown

    with shown(not (quiet or manner.quiet or manner.verbose), title, err) as progress:
        said = [""]

        def report(what: str, share: float) -> None:
            line = f"{share:4.0%} {what}"
            if manner.verbose and line != said[0]:
                say(line)
            said[0] = line
            progress(what, share)

        try:
            yield report
        except KeyboardInterrupt:
            say(f"interrupted: {kept}")
            raise typer.Exit(130) from None


def show(table: Table, text: bool = False) -> None:
    """Print a table that has rows; with ``text``, cells are left-aligned and wrap."""
    if manner.quiet or not table.rows:
        return
    from immunis.report.display import grid

    out.print(grid(table, text))


def show_json(values: Any) -> None:
    """Print values as JSON, in ASCII: it is the same on every terminal."""
    typer.echo(json.dumps(values, indent=1, allow_nan=False))


def estimate(name: str, as_json: bool, call: Callable[[], Any]) -> None:
    """Print what a command would take: its parts, and the whole as the last line."""
    with bar(f"estimate {name}", as_json):
        found = call()
    if as_json:
        show_json(found.to_dict())
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
    as_json: bool,
    tables: Sequence[Table],
    words: str,
    text: bool = False,
) -> None:
    """Print a record that was written: as JSON, or as tables, words and where it is."""
    if as_json:
        show_json(record.to_dict())
        return
    for table in tables:
        show(table, text)
    if not manner.quiet:
        out.print(printable(words), highlight=False, markup=False)
    where(*paths)


def refuse(line: str) -> NoReturn:
    """Say why the command fails though its work is done, and end it."""
    say(f"failed: {line}", "red")
    raise typer.Exit(1)


def fail(record: Record, conditions: Any) -> None:
    """End the command if a condition of ``--fail-if`` holds on what it found."""
    if not conditions:
        return
    from immunis.report.fail_if import failure

    if line := failure(record, conditions):
        refuse(line)


def where(*paths: Path) -> None:
    """Print where the result is; always the last line."""
    line = f"written: {', '.join(map(str, paths))}"
    out.print(printable(line), soft_wrap=True, markup=False)
