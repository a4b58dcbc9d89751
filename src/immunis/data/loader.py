"""Batches for training by step number: a step's rows depend on the seed and its number only.

So a resumed run continues with the batch at which it stopped, and processes share batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from immunis.core.distributed import rank, world
from immunis.core.errors import InputError, SettingsError
from immunis.data.split import Batch, Split
from immunis.data.task import Task

Rows = Tensor
SAMPLES, PER_DIMENSION = 16384, 8  # rows of a Gram: at most SAMPLES, or so many per dimension


@lru_cache(8)  # two streams, which read the end of one pass and the beginning of the next
def _permutation(count: int, seed: int) -> Rows:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def held_out(count: int, share: float, setting: str = "held_out") -> tuple[Rows, Rows]:
    """Return the rows to train on and the rows to hold out, the same in every run."""
    order, size = _permutation(count, count), round(count * share)
    if not 2 <= size <= count - 2:
        needed = "at least 2 are needed to hold out and 2 to train on"
        raise SettingsError(f"{setting}={share} holds out {size} of {count} rows; {needed}.")
    return order[size:].sort().values, order[:size].sort().values


def spread(rows: Rows, size: int) -> Rows:
    """Return at most ``size`` of the rows, evenly spread."""
    return rows[torch.linspace(0, len(rows) - 1, min(size, len(rows))).round().long()]


def fits(size: int, device: torch.device | str) -> bool:
    """Return True if so many bytes fit on a device beside what works on them."""
    if torch.device(device).type != "cuda":
        return True
    return size < torch.cuda.mem_get_info(device)[0] / 4


class Stream:
    """Endless batches of some rows of a task's training data, or of another ``split`` of it.

    ``batch`` is the number of rows per step of all processes, rounded down to a multiple of their
    number. Data in memory is kept on the ``device`` if it fits; ``workers`` read other data ahead.
    """

    def __init__(
        self,
        task: Task,
        batch: int,
        rows: Rows | None = None,
        *,
        split: Split | None = None,
        seed: int = 0,
        workers: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.task, self.split, self.seed = task, split or task.train, seed
        self.workers, self.device = workers, torch.device(device)
        self._encode = task.positions if task.kind == "classification" else task.targets
        self._dataset, self._options = self.split.dataset()
        self._finish: Callable[[Tensor], Tensor] = lambda inputs: inputs
        self._unpack: Callable[[Any], Any] | None = None
        if hasattr(self._dataset, "for_device"):  # images travel as bytes and are scaled on arrival
            source: Any = self._dataset
            self._dataset, options, self._unpack = source.for_device(self.device)
            self._options, self._finish = self._options | options, source.finish
        count = len(self._dataset)  # type: ignore[arg-type]
        self.rows = torch.arange(count) if rows is None else rows
        self.batch = min(batch, len(self.rows)) // world() * world()
        if not self.batch:
            raise SettingsError(f"batch={batch}: expected a row for each of {world()} processes.")
        self.epoch = math.ceil(len(self.rows) / self.batch)  # steps in one pass over the rows
        self._memory: Batch | None = None
        if self.split.in_memory:
            inputs, labels = self._memory = self.split.tensors()
            if fits(inputs.nbytes, self.device):
                self._memory = inputs.to(self.device), labels.to(self.device)

    def rows_at(self, step: int) -> Rows:
        """Return the rows of a step's batch, of all processes together."""
        count, found, position = len(self.rows), [], step * self.batch
        while (missing := (step + 1) * self.batch - position) > 0:
            turn, start = divmod(position, count)
            order = _permutation(count, 1_000_003 * self.seed + turn)
            found.append(order[start : start + missing])
            position += len(found[-1])
        return self.rows[torch.cat(found)]

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield this process's share of the batches of steps ``start`` to ``stop − 1``."""
        return self._read(self.rows_at(step)[rank() :: world()] for step in range(start, stop))

    def subset(self, rows: Rows, size: int = 512) -> Iterator[Batch]:
        """Yield given rows in order, in batches, all of them in every process."""
        return self._read(rows.split(size))

    def _read(self, parts: Iterable[Rows]) -> Iterator[Batch]:
        if self._memory is None:
            yield from self._loaded([rows.tolist() for rows in parts])
            return
        for rows in parts:
            inputs, labels = (part[rows.to(part.device)].to(self.device) for part in self._memory)
            yield inputs, self._encode(labels)

    def _loaded(self, batches: list[list[int]]) -> Iterator[Batch]:
        if not batches:
            return
        workers = self.workers or self._options.get("num_workers", 0)
        loader = DataLoader(
            self._dataset,
            batch_sampler=batches,
            pin_memory=self.device.type == "cuda",
            prefetch_factor=4 if workers else None,
            **{**self._options, "num_workers": workers},
        )
        last = None
        for found in self.split.checked(ahead(self._unpack, loader) if self._unpack else loader):
            # a batch of corrupt samples repeats the last one: tasks and processes stay in step
            last = found or last
            if last is None:
                raise InputError(f"{self.split.where}: nothing in the first batch can be read.")
            inputs = last[0].to(self.device, non_blocking=True)
            if self._unpack is not None and inputs.is_cuda:  # decoded on another CUDA stream
                inputs.record_stream(torch.cuda.current_stream(self.device))
            yield self._finish(inputs), self._encode(last[1].to(self.device))


def ahead(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Yield ``function`` of each item; the next one is computed while the caller works."""
    source, end = iter(items), object()

    def following() -> Any:
        item = next(source, end)
        return end if item is end else function(item)

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(following)
        while (found := pending.result()) is not end:
            pending = pool.submit(following)
            yield found
