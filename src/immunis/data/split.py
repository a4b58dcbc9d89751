"""One part of a task: tensors, arrays, a ``Dataset`` or a ``DataLoader`` as checked batches.

Samples that cannot be read are marked, left out of batches and counted.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import data as torch_data
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from immunis.core.errors import InputError
from immunis.data.checks import TAKEN, as_tensor, check_batch, hash_rows
from immunis.data.columns import as_pair

Batch = tuple[Tensor, Tensor]
ROWS, NUMBERS = 4096, 1 << 24  # of a batch, at most
MOST_CORRUPT = 0.01  # a larger share of unreadable samples is refused
FAULTS = OSError, SyntaxError  # faults of a file; Pillow raises SyntaxError for broken images


@dataclass(frozen=True)
class Corrupt:
    """A sample of a ``Dataset`` that cannot be read."""

    name: str
    reason: str

    @classmethod
    def of(cls, name: str, error: Exception) -> Corrupt:
        """Name the error, without the memory address that Pillow adds."""
        return cls(name, f"{type(error).__name__}: {str(error).partition(' <')[0]}")


class Guarded(Dataset):
    """A user's ``Dataset`` that returns ``Corrupt`` for samples it cannot read.

    All other attributes are the user's, so a ``worker_init_fn`` finds what it expects.
    """

    def __init__(self, data: Any) -> None:
        object.__setattr__(self, "data", data)

    def __getattr__(self, name: str) -> Any:
        if name == "data":  # absent while the object is unpickled
            raise AttributeError(name)
        return getattr(self.data, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.data, name, value)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        try:
            return self.data[index]
        except FAULTS as error:
            return Corrupt.of(f"sample {index}", error)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        with suppress(*FAULTS):
            if hasattr(self.data, "__getitems__"):
                return self.data.__getitems__(indices)
        return [self[index] for index in indices]


def guarded(data: Any) -> Any:
    """Wrap a ``Dataset`` in ``Guarded``, unless it marks corrupt samples itself."""
    marks = isinstance(data, Guarded | torch_data.IterableDataset) or hasattr(data, "for_device")
    return data if marks or not hasattr(data, "__len__") else Guarded(data)


def collate(samples: list[Any]) -> tuple[Any, list[Corrupt]]:
    """Return the readable samples as a batch (None if there are none), and the corrupt ones."""
    bad = [sample for sample in samples if isinstance(sample, Corrupt)]
    good = [sample for sample in samples if not isinstance(sample, Corrupt)]
    try:
        return (default_collate(good) if good else None), bad
    except (RuntimeError, TypeError, KeyError) as error:
        hint = "Give pairs (inputs, label) with inputs of one shape."
        if "PIL" in str(error):
            hint = "Transform the images to tensors of one shape, or give Task their folder's path."
        raise InputError(
            f"samples cannot be joined to a batch: {str(error).splitlines()[0][:200]}. {hint}"
        ) from error


def warn_of_corrupt(last: Corrupt, count: int, total: int, where: str) -> None:
    """Warn that samples were skipped; refuse more than ``MOST_CORRUPT`` of all, except one."""
    if count > max(1, MOST_CORRUPT * total):
        raise InputError(
            f"{where}: {count} of {total} samples cannot be read, the last {last.name} "
            f"({last.reason}); at most {MOST_CORRUPT:.0%}, or one, are skipped. "
            "Check the files, or download them again."
        )
    skipped = f"skipped {last.name} ({last.reason}); {count} of {total} samples so far."
    warnings.warn(f"{where}: {skipped}", stacklevel=4)


class Split:
    """One part of a task, its training or test data, streamed in batches.

    ``source`` is a pair ``(inputs, labels)`` of tensors or arrays of any real dtype, a ``Dataset``
    of such pairs, or a ``DataLoader`` of batches of them. ``where`` names the split in errors.
    """

    def __init__(self, source: Any, where: str) -> None:
        self.where = where
        self.corrupt: set[str] = set()
        self._fingerprint: str | None = None
        self._memory: Batch | None = None
        self._loader: Any = None
        self._width = 1  # numbers of a row, once one was read
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
            raise InputError(
                f"{where}: expected (inputs, labels), a Dataset or a DataLoader, "
                f"got {type(source).__name__}. Taken are {TAKEN}."
            )
        self.in_memory = self._memory is not None

    def _as_tensors(self, pair: Any) -> Batch:
        inputs = as_tensor(pair[0], f"{self.where} inputs").detach()
        return inputs, as_tensor(pair[1], f"{self.where} labels").detach()

    def _check_count(self, count: int) -> None:
        if count < 2:
            raise InputError(f"{self.where}: {count} sample(s) came; at least 2 are needed.")

    def count(self) -> int | None:
        """Return the number of samples, corrupt ones too; None if only reading them tells."""
        if self._memory is not None:
            return len(self._memory[0])
        with suppress(TypeError):  # a sampler or data set without a length
            return len(getattr(self._loader, "sampler", self._loader))
        return None

    @property
    def ordered(self) -> bool:
        """True if each pass gives the same rows in the same order."""
        if not isinstance(self._loader, DataLoader):
            return self.in_memory or hasattr(self._loader, "__len__")
        plain = type(self._loader.batch_sampler) in (torch_data.BatchSampler, type(None))
        return plain and type(self._loader.sampler) is torch_data.SequentialSampler

    def batches(self, size: int | None = None) -> Iterator[Batch]:
        """Yield ``(inputs, labels)`` batches; a ``DataLoader`` keeps its own batch size.

        By default they have 4,096 rows, or fewer if rows are large.
        """
        if size is None:
            size = max(1, min(ROWS, NUMBERS // self._width))
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
                self._width = max(1, batch[0][0].numel())
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
            wanted = "a Dataset with __len__ and __getitem__, not one that only iterates"
            raise InputError(f"{self.where}: training draws rows at random and needs {wanted}.")
        return guarded(source) if options["collate_fn"] is collate else source, options

    def _sampled(self, loader: DataLoader) -> Dataset:
        """Return the rows that a loader's sampler draws from."""
        sampler, data = loader.sampler, loader.dataset
        plain = type(loader.batch_sampler) in (torch_data.BatchSampler, type(None))
        if plain and type(sampler) is torch_data.SubsetRandomSampler:
            return Subset(data, sorted(set(sampler.indices)))
        once = type(sampler) is torch_data.RandomSampler and not sampler.replacement
        in_order = type(sampler) is torch_data.SequentialSampler or not hasattr(data, "__len__")
        if plain and (once or in_order):
            return data
        kind = type(sampler if plain else loader.batch_sampler).__name__
        hint = "Give a DataLoader of Subset(dataset, rows) with the rows it may draw"
        raise InputError(f"{self.where}: training cannot follow a {kind}. {hint}.")

    def checked(self, batches: Iterable[Any]) -> Iterator[Batch | None]:
        """Yield each batch of a loader, checked, or None if all of its samples are corrupt."""
        for batch in batches:
            if isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[1], list):
                batch, bad = batch
                self._count_corrupt(bad)
                if batch is None:
                    yield None
                    continue
            if isinstance(batch, Mapping):
                batch, _ = as_pair(batch, self.where)
            if not (isinstance(batch, tuple | list) and len(batch) == 2):
                raise InputError(
                    f"{self.where}: expected pairs (inputs, labels), got {type(batch).__name__}; "
                    "wrap the dataset."
                )
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

    def identity(self) -> str:
        """Return the fingerprint if it is cheap, else the size and, of a ``Subset``, the rows."""
        source = self.source
        if self.in_memory or hasattr(source, "fingerprint"):
            return self.fingerprint()
        if isinstance(source, Subset):
            rows = torch.tensor(sorted(source.indices))
            return f"{self.where} {len(rows)} {next(hash_rows(rows[None])):032x}"
        return f"{self.where} {len(source)}" if hasattr(source, "__len__") else self.where

    def fingerprint(self) -> str:
        """Return a hash of all inputs and labels that does not depend on their order."""
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
