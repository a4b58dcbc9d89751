"""The methods of both experiments: the paper's four as it ran them, and ours beside them.

The paper's method and two of its baselines go through the released loop. IMMA, the corrected
Algorithm 1 and our closed forms come from the library's registry.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from immunis.core.errors import InputError, NumericalError
from immunis.data.task import Task
from immunis.methods import LinearProblem, get_method
from immunis.paper import released_loop
from immunis.paper.measures import KINDS, Pair

CLOSED = 0  # epochs of a method that has none
IDENTITY = "identity"  # no defence at all
Loop = released_loop.Settings


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        label: its name in tables.
        said: the row of the paper's table to compare with, if any.
        objective: what the released loop descends on; None for a method of the registry.
        method: its name in the registry; empty for the identity.
        settings: of the registry method, from those of the loop and the number of epochs.
        seeded: the method starts at random; any other has a closed form and starts at the identity.
    """

    label: str
    said: str | None = None
    objective: released_loop.Objective | None = None
    method: str = ""
    settings: Callable[[Loop, int], Mapping[str, Any]] = lambda loop, epochs: {}
    seeded: bool = True


def _imma(loop: Loop, epochs: int) -> dict[str, Any]:
    return {"steps": epochs, "step": loop.step}


def _corrected(loop: Loop, epochs: int) -> dict[str, Any]:
    """Return the paper's settings for the library's Algorithm 1."""
    weights = {"lambda_primary": loop.lambda_primary, "lambda_harmful": loop.lambda_harmful}
    adam = {"optimizer": "adam", "batch_size": loop.batch}
    return {"steps": epochs, "step": loop.step, **adam, **weights, "paper_scale": True}


ROWS: dict[str, Row] = {
    IDENTITY: Row("identity", seeded=False),
    "r_ill": Row("R_ill only", "r_ill", "r_ill"),
    "imma": Row("IMMA", "imma", method="imma", settings=_imma),
    "opt_kappa": Row("Opt κ", "opt_kappa", "opt_kappa"),
    "opt_log_kappa": Row("Opt log κ", "opt_kappa", "opt_log_kappa"),
    "algorithm_1": Row("Alg. 1, released", "algorithm_1", "algorithm_1"),
    "condition": Row("Alg. 1, corrected", "algorithm_1", None, "condition", _corrected),
    "certified": Row(
        "Alg. 1, certified", None, None, "condition", lambda *_: {"certified": True}, False
    ),
    "frontier": Row("frontier (ours)", method="frontier", seeded=False),
    "erase": Row("erase (ours)", None, None, "erase", lambda *_: {"strength": 1e-3}, False),
}


def initial(dimension: int, seed: int) -> Tensor:
    """Return θ₀ as ``nn.Linear`` draws it: uniform within ``±1/√D``, the paper's random start."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(dimension, dimension, generator=generator, dtype=torch.float64)
    return (2 * draw - 1) / math.sqrt(dimension)


def problem_of(pair: Pair, tasks: tuple[Task, Task], seed: int) -> LinearProblem:
    """Return the problem that every method solves; its θ is the identity."""
    eye = torch.eye(pair.primary.spectrum.dimension, dtype=torch.float64)
    return LinearProblem(eye, pair.primary.gram, pair.harmful.gram, tasks, seed=seed)


def run_method(
    name: str,
    problem: LinearProblem,
    loop: Loop,
    epochs: Sequence[int],
    pair: Pair,
    keep: Sequence[int],
    more: Callable[[Tensor], dict[str, Any]],
) -> tuple[list[list[float]], dict[str, Any]]:
    """Run one method and return RIR along its path, and a cell for each number of epochs to keep.

    A point of the path is the epochs, then RIR with the released and with the honest κ. A cell
    holds ``ratios`` and what ``more(θ)`` returns, or why the method ``failed``.

    Args:
        name: a key of ``ROWS``.
        problem: from ``problem_of``.
        loop: settings of the released loop; a row replaces the objective.
        epochs: where to stop, rising; a closed form stops once, at ``CLOSED``.
        pair: measures θ.
        keep: the stops that get a cell, besides ``CLOSED``.
        more: measures what else a cell holds.
    """
    row, path = ROWS[name], []
    cells: dict[str, Any] = {}
    for stop, theta in _stops(row, problem, loop, epochs if row.seeded else (CLOSED,)):
        kept = stop in (CLOSED, *keep)
        try:
            if isinstance(theta, Exception):
                raise theta
            ratios = pair.ratios(theta)
        except (InputError, NumericalError) as error:  # InputError: labels leave nothing to erase
            cells |= {str(stop): {"failed": str(error)}} if kept else {}
            continue
        path.append([stop, *(ratios[kind]["rir"] for kind in KINDS)])
        if kept:
            cells[str(stop)] = {"ratios": ratios, **more(theta)}
    return path, cells


def _stops(
    row: Row, problem: LinearProblem, loop: Loop, epochs: Sequence[int]
) -> Iterator[tuple[int, Tensor | Exception]]:
    """Yield ``(epochs, θ)``, or the error in place of θ where the method fails."""
    start = initial(len(problem.theta), problem.seed) if row.seeded else problem.theta
    if row.objective:  # one run passes all stops
        (x_p, y_p), (x_h, _) = (task.train.tensors() for task in problem.tasks)
        chosen, left = dataclasses.replace(loop, objective=row.objective), list(epochs)
        try:
            for stop, theta in released_loop.run(
                start.to(x_p), (x_p, y_p), x_h, chosen, epochs, problem.seed
            ):
                left.remove(stop)
                yield stop, theta
        except (InputError, NumericalError) as error:
            yield from ((stop, error) for stop in left)
        return
    for stop in epochs:  # a run for each, since a method of the registry stops early by itself
        try:
            yield stop, _solved(row, start, problem, loop, stop) if row.method else start
        except (InputError, NumericalError) as error:
            yield stop, error


def _solved(row: Row, start: Tensor, problem: LinearProblem, loop: Loop, epochs: int) -> Tensor:
    method = get_method(row.method)
    assert method.solve is not None
    chosen = method.configure(row.settings(loop, epochs))
    return method.solve(dataclasses.replace(problem, theta=start), chosen).theta
