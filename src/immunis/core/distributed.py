"""The processes of a distributed run: sums over them with gradients, and what ends a lost one.

A regularizer of a Gram matrix is not a mean over samples, so averaging its value over processes
would be wrong. Instead the Gram itself is summed, and every process computes the same value of
it. Data-parallel training then averages gradients over W processes. The backward pass multiplies
by W, so that the average is the gradient of one process that holds the joined batch.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from immunis.core.errors import LostProcessError
from immunis.core.settings import differing

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")  # set by whatever starts processes
_BROKEN = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe", re.IGNORECASE)
_POLL, _GRACE = 0.5, 3.0  # seconds
_WATCHER = "immunis-watch"
_over = threading.Event()
_checkpoint: list[Path] = []  # the last one of this run
_children: list[Any] = []  # processes that Lightning started from this one


def world() -> int:
    """Return the number of processes in this run; 1 where none was started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if world() > 1 else 0


def first() -> bool:
    """Return True in the process that writes results, also before it joins the others."""
    if world() > 1:
        return rank() == 0
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def differing_across_processes(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the values that are not the same on every process."""
    if world() == 1:
        return []
    found: list[Any] = [None] * world()
    dist.all_gather_object(found, dict(values))
    return sorted({name for one in found for name in differing(found[0], one)})


def summed(values: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, without gradient."""
    if world() == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total)
    return total


def total_rows(rows: Tensor) -> int:
    """Return the number of rows that all processes hold together."""
    return len(rows) if world() == 1 else int(summed(torch.tensor(len(rows), device=rows.device)))


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return summed(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * world()


def summed_with_gradient(values: Tensor) -> Tensor:
    """Return the sum over all processes, each of which must compute the same function of it.

    Its gradient, averaged over the processes, is that of the joined batch.
    """
    return values if world() == 1 else _Summed.apply(values)


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
