"""Progress of long work: a bar on a terminal, lines where output is piped, or a user's function."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import rich.progress
from rich.console import Console
from rich.markup import escape

from immunis.core.distributed import first
from immunis.core.errors import SettingsError
from immunis.core.jobs import Progress, silent
from immunis.core.records import printable

P = ParamSpec("P")
T = TypeVar("T")
SOON, LATE = 1.0, 10.0  # seconds until the first line, and at most between two


def with_progress(call: Callable[P, T]) -> Callable[P, T]:
    """Let the keyword ``progress`` of a function be True, False or a function of its own.

    The function itself is given what to call with a label and the share of the work done.
    """

    @functools.wraps(call)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with shown(_wanted(kwargs), call.__name__) as report:
            kwargs["progress"] = report
            return call(*args, **kwargs)

    return wrapped


def _wanted(given: Mapping[str, Any]) -> Any:
    """Return the keyword ``progress``, by default that of the keyword ``run``, by default True."""
    run = given.get("run")
    own = run.get("progress") if isinstance(run, Mapping) else getattr(run, "progress", None)
    return given.get("progress", True if own in (None, silent) else own)


@contextmanager
def shown(wanted: Any, title: str, console: Console | None = None) -> Iterator[Progress]:
    """Yield what to call with a label and the share done, and show it on stderr meanwhile.

    True is a bar on a terminal, and lines elsewhere; work of less than a second prints no line.
    False shows nothing, a function is called instead. Only the first process of a run shows.
    """
    if callable(wanted):
        yield wanted
    elif not isinstance(wanted, bool):
        raise SettingsError(
            f"progress={wanted!r}: expected True, False or a function of a label and a share."
        )
    elif not (wanted and first()):
        yield silent
    elif sys.stderr.isatty():
        with _bar(title, console or Console(stderr=True)) as report:
            yield report
    else:
        lines = _Lines(title)
        try:
            yield lines
        finally:
            lines.end()


@contextmanager
def _bar(title: str, console: Console) -> Iterator[Progress]:
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TimeRemainingColumn(compact=True),
    )
    with rich.progress.Progress(*columns, console=console, transient=True) as progress:
        job = progress.add_task(escape(printable(title)), total=None)

        def report(what: str, share: float) -> None:
            progress.update(job, description=escape(printable(what)), completed=share, total=1.0)

        yield report


class _Lines:
    """Lines on stderr: one after a second, then at each tenth of the work or every ten seconds."""

    def __init__(self, title: str) -> None:
        self._title, self._what, self._share = printable(title), "", 0.0
        self._began = self._at = time.monotonic()
        self._tenth, self._lock = -1, threading.Lock()
        self._first = threading.Timer(SOON, self._say)  # also if nothing is reported until then
        self._first.daemon = True
        self._first.start()

    def __call__(self, what: str, share: float) -> None:
        self._what, self._share = printable(what), share
        now = time.monotonic()
        due = int(10 * share) > self._tenth or now - self._at >= LATE
        if due and now - self._began >= SOON:
            self._say()

    def _say(self) -> None:
        with self._lock:
            line = f"{self._title}: {self._share:4.0%} {self._what}"
            print(line.rstrip(), file=sys.stderr, flush=True)  # noqa: T201 - what it is for
            self._at, self._tenth = time.monotonic(), int(10 * self._share)

    def end(self) -> None:
        """Print nothing more."""
        self._first.cancel()
