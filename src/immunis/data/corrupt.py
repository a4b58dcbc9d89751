"""Samples that cannot be read: marked, left out of batches, counted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, IterableDataset, default_collate

from immunis.core.errors import InputError

MOST_CORRUPT = 0.01  # a larger share of unreadable samples is refused
FAULTS = OSError, SyntaxError  # faults of a file; Pillow raises SyntaxError for broken images


@dataclass(frozen=True)
class Corrupt:
    """Stands in a ``Dataset`` for a sample that cannot be read."""

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
    marks = isinstance(data, Guarded | IterableDataset) or hasattr(data, "for_device")
    return data if marks or not hasattr(data, "__len__") else Guarded(data)


def collate(samples: list[Any]) -> tuple[Any, list[Corrupt]]:
    """Return the readable samples as a batch (None if there are none), and the corrupt ones."""
    bad = [sample for sample in samples if isinstance(sample, Corrupt)]
    good = [sample for sample in samples if not isinstance(sample, Corrupt)]
    try:
        return (default_collate(good) if good else None), bad
    except (RuntimeError, TypeError, KeyError) as error:
        raise InputError(
            f"samples cannot be joined to a batch: {str(error).splitlines()[0][:200]}. Each must "
            "be a pair (inputs, label), with inputs of one shape."
        ) from error


def warn_of_corrupt(last: Corrupt, count: int, total: int, where: str) -> None:
    """Warn that samples were skipped; refuse more than ``MOST_CORRUPT`` of all, except one."""
    if count > max(1, MOST_CORRUPT * total):
        raise InputError(
            f"{where}: {count} of {total} samples cannot be read, the last {last.name} "
            f"({last.reason}); at most {MOST_CORRUPT:.0%}, or one, are skipped. Check the files, "
            "or download them again."
        )
    told = f"skipped {last.name} ({last.reason}); {count} of {total} samples so far."
    warnings.warn(f"{where}: {told}", stacklevel=4)
