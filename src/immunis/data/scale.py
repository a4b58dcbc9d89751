"""The scale of a table's columns: warn where it is uneven, and standardise.

ρ, κ and every linear method see a column as large as it is. A column in thousands hides one in
tenths from them, and not from an attacker, who standardises.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from immunis.core.errors import ScaleWarning
from immunis.data.split import Split
from immunis.data.task import Task

ROWS = 4096  # that are looked at
UNEVEN = 100.0  # largest deviation of a column over the lower quartile of all that vary


class Scale(NamedTuple):
    """Mean and deviation of each column; the deviation of a constant column is 1."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, inputs: Tensor) -> Scale:
        """Return the scale of some rows, in float64."""
        rows = inputs.detach().to("cpu", torch.float64)
        mean, deviation = rows.mean(0), rows.std(0, correction=0)
        constant = deviation <= 1e-12 * mean.abs()
        return cls(mean, torch.where(constant, 1.0, deviation))

    def applied(self, inputs: Tensor) -> Tensor:
        """Return rows on this scale, in their own floating dtype (integers in float64)."""
        found = (inputs.to("cpu", torch.float64) - self.mean) / self.deviation
        return found.to(inputs.dtype) if inputs.is_floating_point() else found


def unevenness(rows: Tensor) -> float:
    """Return the largest deviation of a column over the lower quartile of those that vary.

    >>> x = torch.tensor([[0.0, 0.0, 1.0], [1.0, 5000.0, 1.0]])
    >>> unevenness(x)
    5000.0
    """
    deviation = rows.detach().to("cpu", torch.float64).std(0, correction=0)
    varying = deviation[deviation > 0].sort().values
    return float(varying[-1] / varying[(len(varying) - 1) // 4]) if len(varying) else 1.0


def warn_if_uneven(task: Task, features: Callable[[Tensor], Tensor]) -> None:
    """Warn with ``ScaleWarning`` where the features of a table differ much in scale."""
    if len(task.input_shape) != 1:
        return
    found = unevenness(features(task.train.first(ROWS)))
    if found > UNEVEN:
        warnings.warn(
            f"{task.name}: features differ in scale by a factor of {found:.2g}. κ, ρ and linear "
            "methods see the largest alone; an attacker standardises and sees all. Call "
            "immunis.standardised(primary, harmful), or set standardise = true in [data].",
            ScaleWarning,
            stacklevel=3,
        )


def standardised(*tasks: Task) -> tuple[Task, ...]:
    """Return tasks on flat inputs with every column less its mean, over its deviation.

    The training rows of the first task, the primary one, decide for all, so that one model reads
    them all. ``task.scale`` holds the mean and deviation that new inputs need too.

    >>> task = Task((torch.tensor([[0.0, 10.0], [2.0, 30.0]]), torch.tensor([0, 1])))
    >>> standardised(task)[0].train.tensors()[0].tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    """
    scale = Scale.of(tasks[0].train.tensors()[0])

    def scaled(split: Split) -> tuple[Tensor, Tensor]:
        inputs, labels = split.tensors()
        return scale.applied(inputs), labels

    found = []
    for task in tasks:
        other = task.with_data(scaled(task.train), task.test and scaled(task.test))
        other.scale = scale
        found.append(other)
    return tuple(found)
