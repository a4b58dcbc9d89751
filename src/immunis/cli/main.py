"""The command line: commands in, exit codes out; no traceback for a user's mistake."""

from __future__ import annotations

import sys
import traceback
import warnings

import immunis.cli.commands  # noqa: F401 - registers them
from immunis.cli.console import manner, say, show_warning
from immunis.cli.options import app
from immunis.core.errors import ImmunisError


def main() -> None:
    """Entry point: no traceback for a user's mistake."""
    warnings.showwarning = show_warning
    try:
        app()
    except ImmunisError as error:
        if manner.verbose:
            say(traceback.format_exc())
        say(f"error: {error}", "red")
        sys.exit(2 if isinstance(error, ValueError) else 1)
    except KeyboardInterrupt:
        say("interrupted.")
        sys.exit(130)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "alloc" not in str(error):
            raise  # torch's own, of either kind, says that it tried to allocate
        say(f"error: there is not enough memory for this ({str(error)[:200]}).", "red")
        sys.exit(1)
    except OSError as error:  # stdout is closed or its disk is full
        say(f"error: {error.strerror or error}", "red")
        sys.exit(1)
