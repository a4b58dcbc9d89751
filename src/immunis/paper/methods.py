"""The methods of a reproduction: the paper's four as it ran them, and ours beside them.

Each is a function of a problem, a seed and the epochs to stop at, and yields the θ found after
each. The paper's own method and two baselines go through the released loop; IMMA, the corrected
Algorithm 1 and our closed forms are those of the library's registry.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from immunis.core.errors import NumericalError
from immunis.methods import LinearProblem, get_method
from immunis.paper import loop

CLOSED = 0  # stands where a method has no epochs


@dataclass(frozen=True)
class Setting:
    """What a method is given.

    Attributes:
        problem: moments and tasks, in the coordinates the method works in; θ is the identity.
        primary: inputs and targets of the primary rows, for the released loop.
        harmful: the harmful rows paired with them.
        loop: the loop's settings; each objective replaces its own.
        epochs: epochs to stop at, rising.
        dtype: in which the loop runs; everything is measured in float64.
    """

    problem: LinearProblem
    primary: tuple[Tensor, Tensor]
    harmful: Tensor
    loop: loop.Settings
    epochs: tuple[int, ...]
    dtype: torch.dtype = torch.float64


Found = Iterator[tuple[int, Tensor | NumericalError]]


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        name: key in records.
        label: how tables call it.
        said: which row of the paper's table it is to be compared with, if any.
        find: yields ``(epochs, θ)``, or the error in place of θ where the method diverged.
        seeded: whether the seed enters; a method without one is run once.
        looped: whether it goes through the released loop, one run passing all epochs.
    """

    name: str
    label: str
    said: str | None
    find: Callable[[Setting, int], Found] = field(repr=False)
    seeded: bool = True
    looped: bool = False


def initial(dimension: int, seed: int) -> Tensor:
    """θ₀ as ``nn.Linear`` draws it: uniform within ``±1/√D``, the paper's random start."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(dimension, dimension, generator=generator, dtype=torch.float64)
    return (2 * draw - 1) / math.sqrt(dimension)


def _looped(objective: loop.Objective) -> Callable[[Setting, int], Found]:
    def find(setting: Setting, seed: int) -> Found:
        theta = initial(len(setting.problem.theta), seed).to(setting.dtype)
        chosen = dataclasses.replace(setting.loop, objective=objective)
        left = list(setting.epochs)
        try:
            for epochs, now in loop.run(
                theta, setting.primary, setting.harmful, chosen, setting.epochs, seed
            ):
                left.remove(epochs)
                yield epochs, now
        except NumericalError as error:
            yield from ((epochs, error) for epochs in left)

    return find


def _registered(
    name: str, settings: Callable[[Setting, int], Mapping[str, Any]], random_start: bool
) -> Callable[[Setting, int], Found]:
    """A registry method, run once for each number of epochs, since it stops early by itself.

    Full-batch methods take one step an epoch.
    """
    method = get_method(name)
    solve = method.solve
    assert solve is not None

    def find(setting: Setting, seed: int) -> Found:
        start = setting.problem.theta
        if random_start:
            start = initial(len(start), seed)
        problem = dataclasses.replace(setting.problem, theta=start, seed=seed)
        for epochs in setting.epochs if random_start else (CLOSED,):
            chosen = method.configure(settings(setting, epochs))
            try:
                yield epochs, solve(problem, chosen).theta
            except NumericalError as error:
                yield epochs, error

    return find


def _corrected(setting: Setting, epochs: int) -> dict[str, Any]:
    """The paper's settings for Algorithm 1 with the inverse on the correct side."""
    chosen = setting.loop
    return {
        "steps": epochs, "step": chosen.step, "optimizer": "adam", "batch_size": chosen.batch,
        "lambda_primary": chosen.lambda_primary, "lambda_harmful": chosen.lambda_harmful,
        "paper_scale": True,
    }  # fmt: skip


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("r_ill", "R_ill only", "r_ill", _looped("r_ill"), looped=True),
        Row(
            "imma", "IMMA", "imma",
            _registered(
                "imma", lambda s, epochs: {"steps": epochs, "step": s.loop.step}, True
            ),
        ),
        Row("opt_kappa", "Opt κ", "opt_kappa", _looped("opt_kappa"), looped=True),
        Row("opt_log_kappa", "Opt log κ", "opt_kappa", _looped("opt_log_kappa"), looped=True),
        Row(
            "algorithm_1", "Alg. 1, released", "algorithm_1", _looped("algorithm_1"),
            looped=True,
        ),
        Row(
            "condition", "Alg. 1, corrected", "algorithm_1",
            _registered("condition", _corrected, True),
        ),
        Row(
            "certified", "Alg. 1, certified", None,
            _registered("condition", lambda s, epochs: {"certified": True}, False), False,
        ),
        Row("frontier", "frontier (ours)", None,
            _registered("frontier", lambda s, epochs: {}, False), False),
        Row("erase", "erase (ours)", None,
            _registered("erase", lambda s, epochs: {"strength": 1e-3}, False), False),
    )
}  # fmt: skip
