"""The methods of both experiments: the paper's four as it ran them, and ours beside them.

The paper's method and its baselines go through the released loop. The corrected Algorithm 1 and our
closed forms come from the library's registry; their layers have no bias.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from immunis.data.task import Task
from immunis.methods import LinearProblem, get_method
from immunis.paper import released_loop
from immunis.paper.measures import linear, shaken
from immunis.paper.released_loop import Side, initial
from immunis.theory.gram import Gram

CLOSED = 0  # epochs of a method that has none
IDENTITY = "identity"  # no defence at all
Loop = released_loop.Settings


@dataclass(frozen=True)
class Row:
    """One row of a table; it has an objective of the released loop or a method of the registry."""

    label: str
    said: str | None = None  # the row of the paper's table to compare with
    objective: released_loop.Objective | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the loop's settings
    method: str = ""
    settings: Callable[[Loop, int], Mapping[str, Any]] = lambda loop, epochs: {}  # of the method
    seeded: bool = True  # starts at random; a closed form starts at the identity

    def loop(self, settings: Loop) -> Loop:
        """Return an experiment's settings of the loop with what the row changes."""
        assert self.objective is not None
        return dataclasses.replace(settings, objective=self.objective, **self.changes)


def _corrected(loop: Loop, epochs: int) -> dict[str, Any]:
    """Return the paper's settings for the library's Algorithm 1."""
    weights = {"lambda_primary": loop.lambda_primary, "lambda_harmful": loop.lambda_harmful}
    adam = {"optimizer": "adam", "batch_size": loop.batch}
    return {"steps": epochs, "step": loop.step, **adam, **weights, "paper_scale": True}


ROWS: dict[str, Row] = {
    IDENTITY: Row("identity", seeded=False),
    "r_ill": Row("R_ill only", "r_ill", "r_ill"),
    "imma": Row("IMMA", "imma", "imma"),
    "opt_kappa": Row("Opt κ", "opt_kappa", "opt_kappa"),
    "opt_log_kappa": Row("Opt log κ", "opt_kappa", "opt_log_kappa"),
    "r_ill_with_loss": Row("R_ill only, ImmuLoss", "r_ill", "r_ill_with_loss"),
    "imma_released": Row("IMMA, ImmuLoss", "imma", "imma_released"),
    "opt_kappa_released": Row("Opt κ, ImmuLoss", "opt_kappa", "opt_kappa_released"),
    "opt_kappa_ones": Row(
        "Opt κ, ImmuLoss, weights 1",
        "opt_kappa",
        "opt_kappa_released",
        {"lambda_primary": 1.0, "lambda_harmful": 1.0},
    ),
    "algorithm_1": Row("Alg. 1, released", "algorithm_1", "algorithm_1"),
    "two_processes": Row("Alg. 1, two processes", "algorithm_1", "algorithm_1", {"processes": 2}),
    "text_step": Row("Alg. 1, the text's step", "algorithm_1", "algorithm_1", {"step": 0.005}),
    "condition": Row("Alg. 1, corrected", method="condition", settings=_corrected),
    "certified": Row(
        "Alg. 1, certified",
        method="condition",
        settings=lambda *_: {"certified": True},
        seeded=False,
    ),
    "frontier": Row("frontier (ours)", method="frontier", seeded=False),
    "erase": Row(
        "erase (ours)", method="erase", settings=lambda *_: {"strength": 1e-3}, seeded=False
    ),
}


def solved(
    row: Row, tasks: tuple[Task, Task], grams: tuple[Gram, Gram], loop: Loop, epochs: int, seed: int
) -> nn.Linear:
    """Return the layer that a method of the registry makes; the identity has none.

    Raises:
        InputError: if the labels leave nothing to erase.
        NumericalError: if it diverges.
    """
    size = tasks[0].input_shape[0]
    start = initial(size, seed).weight.T if row.seeded else torch.eye(size, dtype=torch.float64)
    if not row.method:
        return linear(start)
    method = get_method(row.method)
    assert method.solve is not None
    problem = LinearProblem(start, *grams, tasks, seed=seed)
    return linear(method.solve(problem, method.configure(row.settings(loop, epochs))).theta.T)


def trained(
    row: Row,
    primary: Side,
    harmful: Side,
    loop: Loop,
    marks: Sequence[int],
    seed: int,
    reruns: int = 0,
    device: str = "cpu",
) -> Iterator[tuple[int, int, nn.Linear]]:
    """Train a row's runs in the released loop; yield run, epoch and layer as they come.

    The last ``reruns`` runs start from weights with errors of the size of rounding, to see whether
    training magnifies them.
    """
    count, start = len(primary.rows), initial(primary.inputs.shape[1], seed)
    moved = start._replace(weight=shaken(start.weight, seed))
    starts = [start] * (count - reruns) + [moved] * reruns
    seeds = [seed] * count
    for index, epoch, weight, bias in released_loop.run(
        starts, primary, harmful, row.loop(loop), marks, seeds, device
    ):
        yield index, epoch, linear(weight, bias if loop.bias else None)
