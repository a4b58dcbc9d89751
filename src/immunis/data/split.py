"""One part of a task: tensors, arrays, a ``Dataset`` or a ``DataLoader`` as checked batches."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from immunis.core.errors import InputError
from immunis.data.checks import as_tensor, check_batch, hash_rows
from immunis.data.corrupt import Corrupt, collate, guarded, warn_of_corrupt

Batch = tuple[Tensor, Tensor]


class Split:
    """One part of a task (its training or test data), streamed in batches.

    Args:
        source: a pair ``(inputs, labels)`` of tensors or arrays of any real dtype, a ``Dataset`` of
            such pairs, or a ``DataLoader`` of batches of them.
        where: the name of the split in error messages.
    """

    def __init__(self, source: Any, where: str) -> None:
        self.where = where
        self.corrupt: set[str] = set()
        self._fingerprint: str | None = None
        self._memory: Batch | None = None
        self._loader: Any = None
        self.source: Any = None  # the user's Dataset; None for tensors and arrays
        if isinstance(source, TensorDataset) and len(source.tensors) == 2:
            source = source.tensors
        if isinstance(source, DataLoader | Dataset):
            self.source = source.dataset if isinstance(source, DataLoader) else source
            if type(source) is DataLoader and source.collate_fn is default_collate:
                source = copy.copy(source)
                source.collate_fn = collate  # makes the same batches, and marks corrupt samples
                object.__setattr__(source, "dataset", guarded(self.source))  # setattr is forbidden
            self._loader = source
        elif isinstance(source, tuple | list) and len(source) == 2:
            self._memory = inputs, labels = self._as_tensors(source)
            shapes = tuple(inputs.shape), tuple(labels.shape)
            if () in shapes or len(inputs) != len(labels):
                came = f"inputs of shape {shapes[0]} and labels of shape {shapes[1]}"
                raise InputError(f"{where}: {came}; they must pair up one to one.")
            for batch in self.batches(1 << 16):
                check_batch(*batch, where)
            self._check_count(len(inputs))
        else:
            wanted = "expected (inputs, labels), a Dataset or a DataLoader"
            raise InputError(f"{where}: {wanted}, got {type(source).__name__}.")
        self.in_memory = self._memory is not None

    def _as_tensors(self, pair: Any) -> Batch:
        inputs = as_tensor(pair[0], f"{self.where} inputs").detach()
        return inputs, as_tensor(pair[1], f"{self.where} labels").detach()

    def _check_count(self, count: int) -> None:
        if count < 2:
            needed = "at least 2 are needed. Check the filter that selected this split"
            raise InputError(f"{self.where}: {count} sample(s) came; {needed}.")

    def batches(self, size: int = 4096) -> Iterator[Batch]:
        """Yield ``(inputs, labels)`` batches; a ``DataLoader`` keeps its own batch size."""
        if self._memory is not None:
            inputs, labels = self._memory
            for start in range(0, max(len(inputs), 1), size):
                yield inputs[start : start + size], labels[start : start + size]
            return
        loader, seen = self._loader, 0
        if isinstance(loader, Dataset):
            loader = DataLoader(guarded(loader), batch_size=size, collate_fn=collate)
        for batch in self.checked(loader):
            if batch is not None:
                seen += len(batch[0])
                yield batch
        self._check_count(seen)

    def dataset(self) -> tuple[Dataset, dict[str, Any]]:
        """Return the samples as a ``Dataset``, and the ``DataLoader`` options that they need."""
        options: dict[str, Any] = {"collate_fn": collate}
        if self._memory is not None:
            return TensorDataset(*self._memory), options
        source = self._loader
        if isinstance(source, DataLoader):
            names = ("collate_fn", "num_workers", "worker_init_fn")
            options = {name: getattr(source, name) for name in names}
            source = self._sampled(source)
        if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
            raise InputError(
                f"{self.where}: training draws samples in an order of its own, so it needs a "
                "Dataset with __len__ and __getitem__, not one that only iterates."
            )
        return guarded(source) if options["collate_fn"] is collate else source, options

    def _sampled(self, loader: DataLoader) -> Dataset:
        """Return the rows that a loader's sampler draws from."""
        sampler, data = loader.sampler, loader.dataset
        plain = type(loader.batch_sampler) in (BatchSampler, type(None))
        if plain and type(sampler) is SubsetRandomSampler:
            return Subset(data, sorted(set(sampler.indices)))
        once = type(sampler) is RandomSampler and not sampler.replacement
        if plain and (type(sampler) is SequentialSampler or once or not hasattr(data, "__len__")):
            return data
        kind = type(sampler if plain else loader.batch_sampler).__name__
        raise InputError(
            f"{self.where}: training draws samples in an order of its own and cannot follow a "
            f"{kind}. Give a DataLoader of Subset(dataset, rows) with the rows it may draw."
        )

    def checked(self, batches: Iterable[Any]) -> Iterator[Batch | None]:
        """Yield each batch of a loader, checked, or None if all of its samples are corrupt."""
        for batch in batches:
            if isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[1], list):
                batch, bad = batch
                self._count_corrupt(bad)
                if batch is None:
                    yield None
                    continue
            if not (isinstance(batch, tuple | list) and len(batch) == 2):
                wanted = "each item must be a pair (inputs, labels); wrap the dataset"
                raise InputError(f"{self.where}: {wanted}. Got {type(batch).__name__}.")
            inputs, labels = self._as_tensors(batch)
            check_batch(inputs, labels, self.where)
            yield inputs, labels

    def _count_corrupt(self, bad: list[Corrupt]) -> None:
        if {item.name for item in bad} <= self.corrupt:
            return
        self.corrupt |= {item.name for item in bad}
        drawn: Any = getattr(self._loader, "sampler", self._loader)
        warn_of_corrupt(bad[-1], len(self.corrupt), len(drawn), self.where)

    def first(self, count: int) -> Tensor:
        """Return the first ``count`` inputs that can be read."""
        rows = itertools.chain.from_iterable(inputs for inputs, _ in self.batches(count))
        return torch.stack(list(itertools.islice(rows, count)))

    def tensors(self) -> Batch:
        """Return the whole split in memory as ``(inputs, labels)``."""
        if self._memory is not None:
            return self._memory
        inputs, labels = zip(*self.batches(), strict=True)
        return torch.cat(inputs), torch.cat(labels)

    def row_hashes(self) -> Iterator[int]:
        """Yield a 128-bit hash of each input row, without its label."""
        for inputs, _ in self.batches():
            yield from hash_rows(inputs)

    def identity(self) -> str:
        """Return what tells this data from other data without reading all of it.

        This is the fingerprint if it is cheap, else the size and, of a ``Subset``, the rows.
        """
        source = self.source
        if self.in_memory or hasattr(source, "fingerprint"):
            return self.fingerprint()
        if isinstance(source, Subset):
            rows = torch.tensor(sorted(source.indices))
            return f"{self.where} {len(rows)} {next(hash_rows(rows[None])):032x}"
        return f"{self.where} {len(source)}" if hasattr(source, "__len__") else self.where

    def fingerprint(self) -> str:
        """Return a hash of all inputs and labels that does not depend on their order.

        A ``Dataset`` with its own method ``fingerprint`` answers itself.
        """
        if callable(own := getattr(self.source, "fingerprint", None)):
            return own()
        if self._fingerprint is None or not self.in_memory:
            total, count = 0, 0
            for inputs, labels in self.batches():
                flat = inputs.cpu().to(torch.float64).flatten(1)
                targets = labels.cpu().to(torch.float64).reshape(len(labels), -1)
                total += sum(hash_rows(torch.cat([flat, targets], dim=1)))
                count += len(labels)
            self._fingerprint = f"{total % (1 << 128):032x}-{count}"
        return self._fingerprint
