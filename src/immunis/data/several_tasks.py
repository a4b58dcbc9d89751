"""Several tasks as one: a defence against all of them at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Dataset

from immunis.core.errors import InputError
from immunis.data.split import Corrupt, Split, collate
from immunis.data.task import Task, check_tasks


def together(tasks: Sequence[Task]) -> Task:
    """Return one task with the classes of all: a row's class is its own class in its own task.

    Hiding these classes hides every task's labels, and which task a row is from.

    Raises:
        InputError: if tasks are regressions, or their inputs differ in shape.

    >>> one = Task((torch.eye(4), torch.tensor([3, 3, 7, 7])), name="one")
    >>> two = Task((torch.eye(4), torch.tensor([0, 0, 0, 1])), name="two")
    >>> together([one, two]).class_names
    ['one: 3', 'one: 7', 'two: 0', 'two: 1']
    """
    if not tasks:
        raise InputError("no task came; expected at least one.")
    check_tasks(**{f"harmful[{place}]": task for place, task in enumerate(tasks)})
    if len(tasks) == 1:
        return tasks[0]
    for task in tasks:
        if task.kind != "classification" or task.input_shape != tasks[0].input_shape:
            raise InputError(
                f"{task.name} is a {task.kind} of inputs {task.input_shape}; tasks that are joined "
                f"must be classifications of inputs {tasks[0].input_shape}, as {tasks[0].name} is."
            )
    starts = [0, *itertools.accumulate(task.outputs for task in tasks)]
    places = list(zip(tasks, starts, strict=False))

    def joined(splits: Sequence[Split | None]) -> Any:
        found = [split for split in splits if split is not None]
        if len(found) < len(splits):
            return None
        if all(split.in_memory for split in found):
            inputs, labels = zip(*(split.tensors() for split in found), strict=True)
            shifted = [task.positions(y) + at for (task, at), y in zip(places, labels, strict=True)]
            return torch.cat(inputs), torch.cat(shifted)
        parts = zip(places, found, strict=True)
        return ConcatDataset([_Shifted(task, split, at) for (task, at), split in parts])

    names = [f"{task.name}: {name}" for task in tasks for name in task.class_names]
    return Task(
        joined([task.train for task in tasks]),
        joined([task.test for task in tasks]),
        " + ".join(task.name for task in tasks),
        classes=starts[-1],
        names=names,
    )


class _Shifted(Dataset):
    """The samples of a split, labelled by class position plus an offset."""

    def __init__(self, task: Task, split: Split, start: int) -> None:
        self.task, self.start = task, start
        self.rows, options = split.dataset()
        if options["collate_fn"] is not collate:
            raise InputError(
                f"{split.where}: a DataLoader with a collate_fn of its own cannot be joined with "
                "other tasks. Give its Dataset."
            )

    def __len__(self) -> int:
        return len(self.rows)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        sample = self.rows[index]
        if isinstance(sample, Corrupt):
            return sample
        inputs, label = sample
        return inputs, int(self.task.positions(torch.as_tensor(label))[0]) + self.start
