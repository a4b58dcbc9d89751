"""What a distributed run does when one of its processes dies: say so, and end."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from immunis.core.distributed import world
from immunis.core.errors import LostProcessError

_BROKEN = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe", re.IGNORECASE)
_POLL, _GRACE = 0.5, 3.0  # seconds
_WATCHER = "immunis-watch"
_over = threading.Event()
_checkpoint: list[Path] = []  # the last one of this run
_children: list[Any] = []  # processes that Lightning started from this one


def note_checkpoint(path: Path | None) -> None:
    """Remember a run's last checkpoint (None as it begins), to name it if a process dies."""
    _checkpoint[:] = [] if path is None else [path]


def _message(reason: str) -> str:
    advice = "It had written no checkpoint yet: run the same command again."
    if _checkpoint:
        advice = (
            f"Run the same command with --resume to continue from {_checkpoint[0]}; the number of "
            "processes may change."
        )
    return f"a process of this run ended before the others, so the run is over ({reason}). {advice}"


@contextmanager
def report_lost_process() -> Iterator[None]:
    """Raise ``LostProcessError`` in place of the communication library's own error."""
    try:
        yield
    except RuntimeError as error:
        if world() > 1 and _BROKEN.search(str(error)):
            reason = re.sub(r"^\[.*?\] ", "", str(error)).split(". ")[0]
            raise LostProcessError(_message(reason[:200])) from error
        raise


def watch_processes() -> None:
    """End this process when its launcher, or a process that it started, dies.

    A sum that waits for a dead process may wait for ever, in code that nothing can interrupt.
    So a thread watches until ``leave_processes``. It gives the main thread time to report first,
    then says why and ends the process. It replaces Lightning's own observer, which says nothing.
    A parent that is no launcher (a shell, ``nohup``) may end: the run continues.
    """
    launched = os.environ.get("LOCAL_RANK", "0") != "0" or "TORCHELASTIC_RUN_ID" in os.environ
    parent = os.getppid() if launched else None

    def look() -> None:
        while not _over.wait(_POLL):
            _take_children()
            dead = [child for child in _children if child.poll()]
            if parent in (None, os.getppid()) and not dead:
                continue
            if _over.wait(_GRACE):
                return
            for child in _children:
                child.kill()
            which = f"process {dead[0].pid} with code {dead[0].returncode}" if dead else "the first"
            sys.stderr.write(f"error: {_message(which)}\n")
            sys.stderr.flush()
            os._exit(1)

    if not _threads(_WATCHER):
        _over.clear()
        threading.Thread(target=look, name=_WATCHER, daemon=True).start()


def _threads(name: str) -> list[Any]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def _take_children() -> None:
    """Take the processes over from Lightning's observer, which then has nothing to watch."""
    for thread in _threads("child-process-observer"):
        _children.extend(getattr(thread, "_child_processes", []))
        thread._child_processes = []


def leave_processes() -> None:
    """Leave the run, so that no process waits for one that has ended; safe to repeat.

    The group goes first: if that hangs, the watching thread still ends the process. Delete a model
    wrapped for DDP before this call: as the group's last owner it would end gloo's thread while
    it holds Python's lock, and that thread may be waiting for the lock.
    """
    if dist.is_available() and dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
    _over.set()
    for thread in _threads(_WATCHER):
        thread.join()
