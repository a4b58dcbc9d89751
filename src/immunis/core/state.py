"""What all threads of a process share, changed under one lock: seeds, warning filters, variables.

``torch``'s generator, Python's warning filters and the environment belong to all threads. Two
threads that save, change and restore them at once would leave a wrong value behind.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch

LOCK = threading.RLock()
SMALL = 2e8  # operations of a step: about ten milliseconds on one core
_single = 0  # how many threads want one thread of torch
_threads = 1  # what they leave to the last of them


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock, for what seeds torch's generator time and again."""
    with LOCK:
        yield


@contextmanager
def seeded(seed: int, devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Seed torch's own generator, alone, and leave it as it was.

    Layers draw their first weights from it, and dropout its masks; use a ``torch.Generator`` for
    everything else.
    """
    with LOCK, torch.random.fork_rng(list(devices)):
        torch.manual_seed(seed)
        yield


@contextmanager
def quiet(category: type[Warning] = Warning, message: str = "") -> Iterator[None]:
    """Ignore warnings of a category whose text matches, alone."""
    with LOCK, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message, category)
        yield


@contextmanager
def variables(**values: str | None) -> Iterator[None]:
    """Set environment variables, or unset those that are None, alone."""
    with LOCK:
        before = {name: os.environ.get(name) for name in values}
        try:
            _set(values)
            yield
        finally:
            _set(before)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def threads_for(work: float) -> Iterator[None]:
    """Use one thread of torch for steps of so few operations, and all of them for larger ones.

    Several threads wait for one another at every operation. Where other programs keep the cores
    busy, each wait lasts as long as the system's turns, and small work takes many times as long.
    """
    with one_thread() if work < SMALL else nullcontext():
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread of torch, so that results do not depend on the number of cores.

    The last of several that ask for it restores the number.
    """
    global _single, _threads
    with LOCK:
        if not _single:
            _threads = torch.get_num_threads()
        _single += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with LOCK:
            _single -= 1
            if not _single:
                torch.set_num_threads(_threads)
