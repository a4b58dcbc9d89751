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
    """One row of a table; it has an objective of the released loop or a method of the registry."""

    label: str
    said: str | None = None  # the row of the paper's table to compare with
    objective: released_loop.Objective | None = None
    method: str = ""
    settings: Callable[[Loop, int], Mapping[str, Any]] = lambda loop, epochs: {}  # of the method
    seeded: bool = True  # starts at random; a closed form starts at the identity


def _corrected(loop: Loop, epochs: int) -> dict[str, Any]:
    """Return the paper's settings for the library's Algorithm 1."""
    weights = {"lambda_primary": loop.lambda_primary, "lambda_harmful": loop.lambda_harmful}
    adam = {"optimizer": "adam", "batch_size": loop.batch}
    return {"steps": epochs, "step": loop.step, **adam, **weights, "paper_scale": True}


ROWS: dict[str, Row] = {
    IDENTITY: Row("identity", seeded=False),
    "r_ill": Row("R_ill only", "r_ill", "r_ill"),
    "imma": Row("IMMA", "imma", None, "imma", lambda loop, n: {"steps": n, "step": loop.step}),
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


def run_method(
    name: str,
    pair: Pair,
    tasks: tuple[Task, Task],
    loop: Loop,
    epochs: Sequence[int],
    keep: Sequence[int],
    seed: int,
    more: Callable[[Tensor], dict[str, Any]],
) -> tuple[list[list[float]], dict[str, Any]]:
    """Run one method and return RIR along its path, and a cell for each number of epochs to keep.

    A point of the path is the epochs, then RIR with the released and with the honest κ. A cell
    holds ``ratios`` and what ``more(θ)`` returns, or why the method ``failed``. A method stops at
    all ``epochs``, which rise; a closed form stops once, at ``CLOSED``.
    """
    row, path, failed = ROWS[name], [], ""
    cells: dict[str, Any] = {}
    stops = epochs if row.seeded else (CLOSED,)
    thetas = _thetas(row, pair, tasks, loop, stops, seed)
    for stop in stops:
        found = None
        try:
            theta = next(thetas, None)  # None once the released loop has failed
            found = theta if theta is None else (theta, pair.ratios(theta))
        except (InputError, NumericalError) as error:  # InputError: labels leave nothing to erase
            failed = str(error)
        if found:
            path.append([stop, *(found[1][kind]["rir"] for kind in KINDS)])
        if stop in (CLOSED, *keep):
            good = {"ratios": found[1], **more(found[0])} if found else {"failed": failed}
            cells[str(stop)] = good
    return path, cells


def _thetas(
    row: Row, pair: Pair, tasks: tuple[Task, Task], loop: Loop, stops: Sequence[int], seed: int
) -> Iterator[Tensor]:
    """Return the θ of each stop, made when asked for."""
    size = pair.primary.spectrum.dimension
    start = initial(size, seed) if row.seeded else torch.eye(size, dtype=torch.float64)
    problem = LinearProblem(start, pair.primary.gram, pair.harmful.gram, tasks, seed=seed)

    def solved(stop: int) -> Tensor:
        if not row.method:
            return start
        method = get_method(row.method)
        assert method.solve is not None
        return method.solve(problem, method.configure(row.settings(loop, stop))).theta

    if not row.objective:  # a run for each stop: a method of the registry stops early by itself
        return map(solved, stops)
    (x_p, y_p), (x_h, _) = (task.train.tensors() for task in tasks)
    chosen = dataclasses.replace(loop, objective=row.objective)
    run = released_loop.run(start.to(x_p), (x_p, y_p), x_h, chosen, stops, seed)
    return (theta for _, theta in run)
