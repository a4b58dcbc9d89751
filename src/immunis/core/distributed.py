"""The processes of a distributed run: sums over them, with gradients, and what if one dies.

A regularizer of a Gram matrix is no mean over samples, so averaging the gradients of
per-process values would be wrong. The Gram itself is summed, every process computes the same
value of it, and each sends back the gradient of its own samples. Data-parallel training then
*averages* gradients over W processes, hence the factor W on the way back: the average is
the gradient of one process that held the joined batch.
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
from torch.nn import functional

from immunis.core.errors import LostProcessError
from immunis.core.settings import differing

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")  # set by whatever starts processes
_BROKEN = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe", re.IGNORECASE)
_POLL, _GRACE = 0.5, 3.0  # seconds
_WATCH = "immunis-watch"
_over = threading.Event()
_checkpoint: list[Path] = []  # the last one of this run


def note_checkpoint(path: Path | None) -> None:
    """Note where a run's last checkpoint is (None as it begins), to say so if a process dies."""
    _checkpoint[:] = [] if path is None else [path]


def _lost(reason: str) -> str:
    kept = (
        f"The same command with --resume goes on from {_checkpoint[0]}, also with another number "
        "of processes."
        if _checkpoint
        else "It had written no checkpoint yet: the same command starts again."
    )
    return (
        f"a process of this run has ended before the others, so the run is over ({reason}). {kept}"
    )


def world() -> int:
    """Number of processes in this run; 1 where none was started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if world() > 1 else 0


def first() -> bool:
    """Whether this is the process that writes results, also before a run is joined."""
    if world() > 1:
        return rank() == 0
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


@contextmanager
def together() -> Iterator[None]:
    """Say in plain words that a sum failed because another process is gone.

    Raises:
        LostProcessError: in place of what the communication library raised.
    """
    try:
        yield
    except RuntimeError as error:
        if world() > 1 and _BROKEN.search(str(error)):
            reason = re.sub(r"^\[.*?\] ", "", str(error)).split(". ")[0]
            raise LostProcessError(_lost(reason[:200])) from error
        raise


def watch() -> None:
    """End this process when the launcher that started it, or one that it started, has died.

    A sum that waits for a dead process may wait for ever, in code that nothing can interrupt.
    So a thread looks on until ``leave``: it lets the main thread speak first, then says why
    and ends. Takes the place of Lightning's own observer, which ends without a word. A parent
    that is no launcher (a shell, ``nohup``) may go: the run goes on.
    """
    parent = os.getppid() if _launched() else None

    def look() -> None:
        while not _over.wait(_POLL):
            children = _children()
            dead = [child for child in children if child.poll()]
            if parent in (None, os.getppid()) and not dead:
                continue
            if _over.wait(_GRACE):
                return
            for child in children:
                child.kill()
            which = f"process {dead[0].pid} with code {dead[0].returncode}" if dead else "the first"
            sys.stderr.write(f"error: {_lost(which)}\n")
            sys.stderr.flush()
            os._exit(1)

    if not _watchers():
        _over.clear()
        threading.Thread(target=look, name=_WATCH, daemon=True).start()


def _watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == _WATCH]


def _launched() -> bool:
    """Whether another process of the run (Lightning's first one) or torchrun started this one."""
    return os.environ.get("LOCAL_RANK", "0") != "0" or "TORCHELASTIC_RUN_ID" in os.environ


_started: list[Any] = []


def _children() -> list[Any]:
    """Processes that Lightning started from this one; its observer is sent home."""
    for thread in threading.enumerate():
        if thread.name == "child-process-observer" and getattr(thread, "_child_processes", None):
            _started.extend(thread._child_processes)  # type: ignore[attr-defined]
            thread._child_processes = []  # type: ignore[attr-defined]
    return _started


def leave() -> None:
    """Leave the run, so that no process waits for one that has ended; safe to repeat.

    The group goes first: should that hang, the watching thread still ends the process. A model
    wrapped for DDP must be gone by then: as the group's last owner it would end gloo's thread
    while holding Python's lock, which that thread may be waiting for.
    """
    if dist.is_available() and dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
    _over.set()
    for thread in _watchers():
        thread.join()


def apart(values: Mapping[str, Any]) -> list[str]:
    """Names of values that are not the same on every process."""
    if world() == 1:
        return []
    found: list[Any] = [None] * world()
    dist.all_gather_object(found, dict(values))
    return sorted({name for one in found for name in differing(found[0], one)})


def summed(values: Tensor) -> Tensor:
    """Sum of a tensor over all processes, without gradient."""
    if world() == 1:
        return values
    total = values.detach().clone()
    dist.all_reduce(total)
    return total


def total_rows(rows: Tensor) -> int:
    """Number of rows that all processes hold together; one process alone asks no device."""
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
    """Sum over all processes, each of which must compute the same function of it.

    Its gradient, averaged over the processes, is that of the joined batch.
    """
    return values if world() == 1 else _Summed.apply(values)


def joined(rows: Tensor) -> Tensor:
    """Rows (n, D) of all processes one after the other, with a gradient as of their sum."""
    if world() == 1:
        return rows
    counts = torch.zeros(world(), dtype=torch.int64, device=rows.device)
    counts[rank()] = len(rows)
    counts = summed(counts)
    before, after = int(counts[: rank()].sum()), int(counts[rank() + 1 :].sum())
    return summed_with_gradient(functional.pad(rows, (0, 0, before, after)))
