"""A task: labelled data in a role, and the tasks of one experiment."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from immunis.core.errors import InputError
from immunis.core.settings import whole
from immunis.data.columns import Reading, as_pair
from immunis.data.split import Split
from immunis.data.text import LENGTH
from immunis.data.train_test import parts_of
from immunis.data.transforms import SIZE, Scaling


def target_matrix(labels: Tensor, kind: str, outputs: int) -> Tensor:
    """Return classes (n,) as one-hot rows (n, outputs), or regression targets, in float64."""
    if kind == "regression":
        return labels.to(torch.float64).reshape(len(labels), -1)
    return torch.nn.functional.one_hot(labels.to(torch.int64), outputs).to(torch.float64)


class Task:
    """Labelled data in a role: ``primary``, ``harmful`` or ``transfer``.

    Integer labels mean classification, floating-point labels mean regression. Text becomes token
    ids and masks (``data.text``).

    Args:
        train: ``(inputs, labels)``, a DataFrame, a dict of columns, a ``Dataset`` or a
            ``DataLoader`` of pairs or dicts, a Hugging Face data set (a ``DatasetDict`` gives the
            test data too), or the path of a folder of images: with one folder a class, or with
            ``train`` and ``test`` of those. Inputs may be a list of Pillow's images.
        test: the same for held-out data; optional.
        classes: number of classes ``C`` (labels are ``0..C-1``), to spare a pass over the labels.
        names: the names of the classes, by label; by default the data set's ``classes``.
        tokenizer: for text, the model's own, or its folder, ``package:NAME/PATH`` or hub name.
        max_length: for text, the most tokens; the same for all tasks of one model.
        size: for images from files, Hugging Face or Pillow, their width and height in pixels.
        scaling: for these, how pixels are scaled: ``imagenet``, ``clip`` or ``inception``.

    >>> task = Task(train=(torch.eye(4), torch.tensor([3, 3, 7, 7])), name="toy")
    >>> task.kind, task.classes, task.outputs
    ('classification', (3, 7), 2)
    """

    def __init__(
        self,
        train: Any,
        test: Any = None,
        name: str = "task",
        *,
        classes: int | None = None,
        names: Sequence[str] | None = None,
        tokenizer: Any = None,
        max_length: int = LENGTH,
        size: int = SIZE,
        scaling: Scaling = "imagenet",
    ) -> None:
        self.name, reading = str(name), Reading(tokenizer, max_length)
        self.scale: Any = None  # ``data.scale.Scale``, of inputs that were standardised
        train, test = parts_of(train, test, whole(size, "size", 8), scaling, self.name)
        train, self._names = as_pair(train, f"{self.name} train", reading, names)
        test, _ = as_pair(test, f"{self.name} test", reading, self._names)
        self.train = Split(train, f"{self.name} train")
        self.test = None if test is None else Split(test, f"{self.name} test")
        inputs, labels = next(self.train.batches(2))
        self.kind = "regression" if labels.is_floating_point() else "classification"
        self.input_shape = tuple(inputs.shape[1:])
        self._outputs = 1 if labels.ndim == 1 else int(labels.shape[1])
        self._classes: tuple[int, ...] | None = None
        if classes is not None:
            if self.kind == "regression":
                raise InputError(f"{name}: classes={classes} was given, but labels are floats.")
            if not isinstance(classes, int) or classes < 1:
                raise InputError(f"{name}: classes={classes!r}; expected a number of at least 1.")
            self._classes = tuple(range(classes))
        if self.test is not None:
            inputs, labels = next(self.test.batches(2))
            shape, dtype = tuple(inputs.shape[1:]), labels.dtype
            if shape != self.input_shape:
                came = f"{shape} in test data and {self.input_shape} in training data"
                raise InputError(f"{name}: samples have shapes {came}; they must agree.")
            if dtype.is_floating_point != (self.kind == "regression"):
                came = f"training labels mean {self.kind}, but test labels are {dtype}"
                raise InputError(f"{name}: {came}; give both as integers or both as floats.")

    @property
    def classes(self) -> tuple[int, ...]:
        """The class labels seen in training data, sorted; empty for regression."""
        if self.kind == "regression":
            return ()
        if self._classes is None:
            seen, count = set[int](), 0
            for _, labels in self.train.batches():
                seen.update(labels.unique().tolist())
                count += len(labels)
            if len(seen) > max(50, count // 2):
                found = f"{self.name}: {len(seen)} distinct integer labels in {count} samples"
                hint = "if they are quantities, pass them as floats for regression"
                warnings.warn(f"{found}; {hint}.", stacklevel=2)
            self._classes = tuple(sorted(seen))
        return self._classes

    @property
    def class_names(self) -> list[str]:
        """Names of the classes: as given, or from the data set, or their labels."""
        own = self._names or self._own_names()
        if isinstance(own, list | tuple) and self.classes and self.classes[-1] < len(own):
            return [str(own[label]) for label in self.classes]
        return [str(label) for label in self.classes]

    @property
    def outputs(self) -> int:
        """Width of the target matrix: number of classes, or of regression targets."""
        return len(self.classes) if self.kind == "classification" else self._outputs

    def targets(self, labels: Tensor) -> Tensor:
        """Return labels as a float64 matrix: one column per class, or the targets."""
        known = self.positions(labels) if self.kind == "classification" else labels
        return target_matrix(known, self.kind, self.outputs)

    def positions(self, labels: Tensor) -> Tensor:
        """Map class labels to ``0..C-1``; refuse labels that the training data does not have."""
        known = torch.tensor(self.classes, device=labels.device)
        labels = labels.reshape(-1).to(torch.int64)
        index = torch.searchsorted(known, labels).clamp(max=len(known) - 1)
        wrong = known[index] != labels
        if bool(wrong.any()):
            found = f"{len(known)} classes from {self.classes[0]} to {self.classes[-1]}"
            strange = f"label {int(labels[wrong][0])} is not among the training classes"
            raise InputError(f"{self.name}: {strange} ({found}).")
        return index

    def with_data(self, train: Any, test: Any = None) -> Task:
        """Return the same task, with its classes and their names, on other inputs."""
        found = Task(train, test, self.name, names=self._names or self._own_names())
        found._classes = self.classes or None
        return found

    def _own_names(self) -> Any:
        source = self.train.source
        while not hasattr(source, "classes") and hasattr(source, "dataset"):  # a subset of one
            source = source.dataset
        return getattr(source, "classes", None)

    def __repr__(self) -> str:
        """Show the name, kind and input shape."""
        return f"Task({self.name!r}, {self.kind}, inputs {self.input_shape})"


class Tasks(NamedTuple):
    """The tasks of one experiment.

    ``attacker`` is the harmful task with the attacker's own training data, disjoint from the
    defender's sample in ``harmful``; ``transfer`` are other, harmless tasks.
    """

    primary: Task
    harmful: Task
    attacker: Task
    transfer: tuple[Task, ...] = ()


def by_turns(labels: Iterable[Any], times: int = 1) -> tuple[list[int], list[int]]:
    """Return the defender's and the attacker's rows: within each class they take turns.

    The attacker takes ``times`` rows in a turn, so they may hold more than the defender does.

    >>> by_turns([7, 7, 3, 7, 3])
    ([0, 2, 3], [1, 4])
    >>> by_turns("aaaaaa", times=2)
    ([0, 3], [1, 2, 4, 5])
    """
    turns: dict[Any, int] = {}
    rows: tuple[list[int], list[int]] = [], []
    for row, label in enumerate(labels):
        turn = turns[label] = turns.get(label, -1) + 1
        rows[turn % (times + 1) > 0].append(row)
    return rows


def check_tasks(**given: Any) -> None:
    """Raise ``InputError`` for an argument that is no ``Task``, naming it."""
    for name, task in given.items():
        if not isinstance(task, Task):
            came = type(task).__name__
            raise InputError(f"{name}: expected a Task, got {came}; wrap data as Task((X, y)).")
