"""Count the modules of immunis that a command calls into, and its longest chain of them.

``python benchmarks/call_path.py immunize digit-parity`` lists the modules whose functions run once
all is imported, and the longest chain of different modules that call one another. Other processes
are not seen: give ``--workers 1``.
"""

from __future__ import annotations

import collections
import pkgutil
import sys
import tempfile
import threading
from importlib import import_module
from types import FrameType
from typing import Any

import immunis

seen: set[str] = set()
deepest: list[str] = []


def room(frame: FrameType | None) -> str:
    """Return the module of a function of immunis without the package's name, else nothing."""
    if frame is None or frame.f_code.co_name == "<module>":  # that also is an annotation, evaluated
        return ""
    name = frame.f_globals.get("__name__", "")
    return name.removeprefix("immunis.") if name.startswith("immunis.") else ""


def watch(frame: FrameType, event: str, _: Any) -> None:
    """Note the module of each function that is called, and the chain above it if it is longer."""
    name, above = room(frame), frame.f_back
    if event != "call" or not name or name == room(above):
        return
    seen.add(name)
    chain = {name: None}
    while above is not None:
        chain |= {room(above): None}
        above = above.f_back
    chain.pop("", None)
    if len(chain) > len(deepest):
        deepest[:] = reversed(chain)


def main() -> None:
    """Run the command in this process and print what it called."""
    for module in pkgutil.walk_packages(immunis.__path__, "immunis."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    cli = sys.modules.get("immunis.cli.main") or import_module("immunis.cli")  # version 0.1
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["immunis", *sys.argv[1:], "--output", folder]
        threading.setprofile(watch)
        sys.setprofile(watch)
        try:
            cli.main()
        except SystemExit:
            pass
        finally:
            sys.setprofile(None)
    rooms = collections.Counter(name.split(".")[0] for name in seen)
    print(*sorted(seen), sep="\n")
    print(f"{len(seen)} modules:", ", ".join(f"{n} {name}" for name, n in rooms.most_common()))
    print(f"{len(deepest)} deep:", " > ".join(deepest))


if __name__ == "__main__":
    main()
