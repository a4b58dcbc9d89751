"""A task: labelled data in a role.

Integer labels mean classification, floating-point labels mean regression. ``Task.epsilon`` is
the precision of the inputs: it bounds which eigenvalues can be told from zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from immunis.core.errors import InputError
from immunis.data.checks import epsilon_of
from immunis.data.split import Split


def target_matrix(labels: Tensor, kind: str, outputs: int) -> Tensor:
    """Return labels (n,) as a float64 matrix (n, outputs).

    Classes ``0..outputs-1`` become one-hot rows; regression targets stay as they are.
    """
    if kind == "regression":
        return labels.to(torch.float64).reshape(len(labels), -1)
    return torch.nn.functional.one_hot(labels.to(torch.int64), outputs).to(torch.float64)


class Task:
    """Labelled data in a role: ``primary``, ``harmful`` or ``transfer``.

    Args:
        train: ``(inputs, labels)``, a ``Dataset`` or a ``DataLoader``.
        test: the same for held-out data; optional.
        name: the name in tables, records and errors.
        classes: number of classes ``C`` (labels are ``0..C-1``), to spare a pass over the labels.
        names: the names of the classes, by label; by default the data set's ``classes``.

    Raises:
        InputError: for data that cannot be used; the message says why.

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
    ) -> None:
        self.name, self._names = str(name), names
        self.train = Split(train, f"{self.name} train")
        self.test = None if test is None else Split(test, f"{self.name} test")
        first_inputs, first_labels = next(self.train.batches(2))
        self.kind = "regression" if first_labels.is_floating_point() else "classification"
        self.input_shape = tuple(first_inputs.shape[1:])
        self.epsilon = epsilon_of(first_inputs.dtype)
        if classes is not None and self.kind == "regression":
            raise InputError(f"{self.name}: classes={classes} was given, but labels are floats.")
        if classes is not None and (not isinstance(classes, int) or classes < 1):
            raise InputError(f"{self.name}: classes={classes!r}; expected a number of at least 1.")
        self._classes = None if classes is None else tuple(range(classes))
        self._outputs = 1 if first_labels.ndim == 1 else int(first_labels.shape[1])
        if self.test is not None:
            test_inputs, test_labels = next(self.test.batches(2))
            if tuple(test_inputs.shape[1:]) != self.input_shape:
                raise InputError(
                    f"{self.name}: test inputs have shape {tuple(test_inputs.shape[1:])} per "
                    f"sample, training inputs {self.input_shape}; they must agree."
                )
            if test_labels.is_floating_point() != (self.kind == "regression"):
                raise InputError(
                    f"{self.name}: training labels mean {self.kind}, but test labels are "
                    f"{test_labels.dtype}; give both as integers or both as floats."
                )

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
                warnings.warn(
                    f"{self.name}: {len(seen)} distinct integer labels in {count} samples; if "
                    "they are quantities, pass them as floats for regression.",
                    stacklevel=2,
                )
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
            raise InputError(
                f"{self.name}: label {int(labels[wrong][0])} is not among the training classes "
                f"({len(known)} classes from {self.classes[0]} to {self.classes[-1]})."
            )
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
