"""The command line: commands in, exit codes out; no traceback for a user's mistake."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
import warnings
from types import FrameType


def main() -> None:
    """Entry point: no traceback for a user's mistake."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    own = usual and threading.current_thread() is threading.main_thread()
    try:
        if own:
            signal.signal(signal.SIGINT, _interrupt)
        _run()  # imports everything else, so that an interrupt is caught from the start
    except KeyboardInterrupt:
        sys.stderr.write("interrupted.\n")
        sys.exit(130)
    finally:
        if own:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or end at once if a module loads: its C++ code may abort on it."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            sys.stderr.write("interrupted.\n")
            sys.stderr.flush()
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def _run() -> None:
    import immunis.cli.commands  # noqa: F401 - registers them
    from immunis.cli.console import manner, say, show_warning, warned
    from immunis.cli.options import app
    from immunis.core.errors import ImmunisError

    warned.clear()
    warnings.showwarning = show_warning
    for stream in (sys.stdout, sys.stderr):  # a terminal without Greek letters shows \u03ba
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except ImmunisError as error:
        if manner.verbose:
            say(traceback.format_exc())
        say(f"error: {error}", "red")
        sys.exit(2 if isinstance(error, ValueError) else 1)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "alloc" not in str(error):
            raise  # torch's own, of either kind, says that it tried to allocate
        say(f"error: there is not enough memory for this ({str(error)[:200]}).", "red")
        sys.exit(1)
    except OSError as error:  # stdout is closed or its disk is full
        say(f"error: {error.strerror or error}", "red")
        sys.exit(1)
