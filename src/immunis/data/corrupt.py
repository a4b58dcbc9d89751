"""Samples that cannot be read: told from the others, left out of batches, counted by splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, IterableDataset, default_collate

from immunis.core.errors import InputError

MOST_CORRUPT = 0.01  # share of unreadable samples above which a data set is refused
FAULTS = OSError, SyntaxError  # a file's, not the program's: Pillow says so of broken images


@dataclass(frozen=True)
class Corrupt:
    """What a ``Dataset`` gives in place of a sample that cannot be read."""

    name: str
    reason: str


class Guarded(Dataset):
    """A user's ``Dataset``, with ``Corrupt`` in place of what it cannot read.

    All else that is asked of it or set on it, by a ``worker_init_fn`` say, is the user's.
    """

    def __init__(self, data: Any) -> None:
        object.__setattr__(self, "data", data)

    def __getattr__(self, name: str) -> Any:
        if name == "data":  # not there yet, while it is unpickled
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
            said = str(error).partition(" <")[0]  # without the address of a buffer
            return Corrupt(f"sample {index}", f"{type(error).__name__}: {said}")

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several samples at once, as some data sets prefer; one by one where that fails."""
        at_once = getattr(self.data, "__getitems__", None)
        if at_once is not None:
            try:
                return at_once(indices)
            except FAULTS:
                pass
        return [self[index] for index in indices]


def guarded(data: Any) -> Any:
    """A ``Dataset`` that gives ``Corrupt`` for what it cannot read, as ours (``sent``) do."""
    own = isinstance(data, Guarded | IterableDataset) or hasattr(data, "sent")
    return data if own or not hasattr(data, "__len__") else Guarded(data)


def collate(items: list[Any]) -> tuple[Any, list[Corrupt]]:
    """Join the readable items of a batch, and list the others; None where all are corrupt.

    Raises:
        InputError: for items that are no pairs, or of several shapes.
    """
    bad = [item for item in items if isinstance(item, Corrupt)]
    good = [item for item in items if not isinstance(item, Corrupt)]
    try:
        return (default_collate(good) if good else None), bad
    except (RuntimeError, TypeError, KeyError) as error:
        raise InputError(
            f"samples cannot be joined to a batch: {str(error).splitlines()[0][:200]}. Each must "
            "be a pair (inputs, label), with inputs of one shape."
        ) from error
