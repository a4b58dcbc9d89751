"""A task as arrays, which workers share, and the features that a model gives of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from immunis.core.disk_arrays import MEMORY, Memory
from immunis.core.errors import InputError
from immunis.core.state import quiet
from immunis.data.checks import hash_rows
from immunis.data.split import Split
from immunis.data.task import Task
from immunis.models.cut import Cut

BLOCK, NUMBERS = 512, 1 << 25  # rows of a forward pass, and the numbers in them
FEW_TEST = 10  # test rows, without those of the commonest class
Arrays = tuple[np.ndarray, np.ndarray]


def tensor(array: np.ndarray) -> Tensor:
    """View an array as a tensor to read from; worker processes hold theirs read-only."""
    with quiet(UserWarning):
        return torch.from_numpy(array)


def array_of(values: Tensor) -> np.ndarray:
    """Return a tensor as a contiguous array, which workers share; half precision as float32."""
    half = values.dtype in (torch.float16, torch.bfloat16)
    return np.ascontiguousarray((values.float() if half else values).detach().cpu().numpy())


@dataclass(frozen=True)
class Data:
    """Inputs and labels as arrays: class positions (integers) or a target matrix (floats)."""

    inputs: np.ndarray
    labels: np.ndarray


def data_of(task: Task, split: Split, shelf: Memory = MEMORY) -> Data:
    """Return a part of a task as arrays, read block by block.

    Rows of a loader that may shuffle come in the order of their hashes.
    """
    known = task.positions if task.kind == "classification" else task.targets
    if split.in_memory:
        inputs, labels = split.tensors()
        return Data(array_of(inputs), array_of(known(labels)))
    hashes, answers = list[int](), list[Tensor]()

    def read() -> Iterator[np.ndarray]:
        for rows, labels in split.batches():
            hashes.extend(() if split.ordered else hash_rows(rows))
            answers.append(known(labels))
            yield array_of(rows)

    given = shelf.join(read())
    if split.ordered:
        return Data(given, array_of(torch.cat(answers)))
    order = np.argsort(np.array(hashes, dtype=object))
    sorted_rows = shelf.take(given, order)
    shelf.drop(given)
    return Data(sorted_rows, array_of(torch.cat(answers)[torch.from_numpy(order)]))


@dataclass(frozen=True, eq=False)
class Samples:
    """A task as arrays: its kind, and the number of classes or targets."""

    kind: str
    outputs: int
    train: Data
    test: Data

    @classmethod
    def of(cls, task: Task, shelf: Memory = MEMORY) -> Samples:
        """Return a task as arrays; raise InputError if no attack can be scored on it.

        What is not in memory, and large, goes to the shelf.
        """
        if task.test is None:
            raise InputError(
                f"{task.name} has no test data to score attacks on; expected Task(train, test)."
            )
        if task.kind == "classification" and len(task.classes) < 2:
            raise InputError(f"{task.name} has a single class; expected two or more.")
        parts = (data_of(task, split, shelf) for split in (task.train, task.test))
        found = cls(task.kind, task.outputs, *parts)
        found.check_test(task.name)
        return found

    def check_test(self, name: str) -> None:
        """Raise InputError if every answer scores alike on the test rows; warn if few rows decide.

        R² needs targets that vary, by a millionth of the training targets' spread at least;
        accuracy needs two classes.
        """
        labels = self.test.labels
        if self.kind == "regression":
            spread, of = np.ptp(labels, axis=0).max(), np.ptp(self.train.labels, axis=0).max()
            constant, telling = spread <= 1e-6 * of, len(labels)
        else:
            counts = np.bincount(labels)
            constant, telling = (counts > 0).sum() < 2, len(labels) - counts.max()
        if constant:
            what = "constant targets" if self.kind == "regression" else "one class"
            raise InputError(
                f"{name}: all {len(labels)} test rows have {what}, so no attack can be told from a "
                "constant answer. Give test rows that differ."
            )
        if telling < FEW_TEST:
            warnings.warn(
                f"{name}: {telling} of {len(labels)} test rows decide the score; expected at least "
                f"{FEW_TEST}. Give more test rows, of rare classes too; the figures are noise.",
                stacklevel=3,
            )

    @property
    def chance(self) -> float:
        """The test score of the best constant answer: the commonest class, or R² = 0."""
        if self.kind == "regression":
            return 0.0
        commonest = np.bincount(self.train.labels).argmax()
        return float((self.test.labels == commonest).mean())


def in_blocks(inputs: np.ndarray, rows: np.ndarray | None = None) -> Iterator[Tensor]:
    """Yield inputs, or some rows of them, in blocks of 512, or of fewer if rows are large."""
    size = max(1, min(BLOCK, NUMBERS // max(1, inputs[:1].size)))
    count = len(inputs) if rows is None else len(rows)
    for start in range(0, count, size):
        part = slice(start, start + size)
        yield tensor(inputs[part] if rows is None else inputs[rows[part]])


def read_features(
    cut: Cut,
    inputs: np.ndarray,
    view: Callable[[Tensor], Tensor] = lambda inputs: inputs,
    rows: np.ndarray | None = None,
) -> Tensor:
    """Return a model's features of a view of inputs (some rows), without gradients, on the CPU."""
    with torch.no_grad():
        return torch.cat([cut.features(view(x)).cpu() for x in in_blocks(inputs, rows)])


def read_layers(
    cut: Cut,
    inputs: np.ndarray,
    layers: Mapping[str, Callable[[Tensor], Tensor]],
    rows: np.ndarray | None = None,
) -> dict[str, Tensor]:
    """Return what a model gives at several layers in one pass, each mapped, on the CPU."""
    with torch.no_grad():
        blocks = [
            {name: change(found[name]).cpu() for name, change in layers.items()}
            for x in in_blocks(inputs, rows)
            for found in [cut.features_at(x, tuple(layers))]
        ]
    return {name: torch.cat([block[name] for block in blocks]) for name in layers}
