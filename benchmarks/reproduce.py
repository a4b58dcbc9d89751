"""How much faster a step of the released loop is than the oracle's; part of ``make bench``.

The oracle (``tests/helpers/released.py``) is our naive port of what the released code does:
autograd through two D×D decompositions and two solves. It is not the released program, which we
have not timed. Ours makes the same step from 64×64 matrices. Both are timed on one thread, in
float64, on MNIST 3/7 and on House Prices, in seconds of the processor. With
``--device cuda`` a stack of runs on MNIST is timed for every objective too. Exits with 1 if a ratio
misses its target. With a path as argument, the ratios are saved there as a record.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from common import arguments, line, save
from helpers.released import released_run
from immunis.core.errors import InputError
from immunis.data.sources.digit_images import mnist_images, standardised
from immunis.data.sources.house_price_table import find_or_fetch, released_split
from immunis.paper import house_prices, mnist, released_loop
from immunis.paper.measures import Pair, linear
from immunis.paper.mnist import STACK

STEPS = 8  # of the oracle


class Case(NamedTuple):
    """An experiment: inputs and targets of both tasks, its settings, and the least ratios."""

    name: str
    sides: tuple[tuple[Tensor, Tensor], ...]
    settings: released_loop.Settings
    targets: dict[str, float]  # by objective


def cases() -> Iterator[Case]:
    """Yield the experiments whose data is there."""
    try:
        images, digits = mnist_images()
        chosen = [np.flatnonzero(digits == digit)[:5888] for digit in (3, 7)]
        x = [torch.from_numpy(standardised(images[rows])).float() for rows in chosen]
        sides = tuple((each, torch.full((len(each),), label)) for label, each in enumerate(x))
        yield Case("MNIST", sides, mnist.LOOP, {"algorithm_1": 10.0, "opt_kappa": 1.0})
    except InputError as error:
        print(f"left out: {error}")
    try:
        tasks = released_split(find_or_fetch(None))
        sides = tuple(task.train.tensors() for task in (tasks.primary, tasks.harmful))
        targets = {"algorithm_1": 1.0, "opt_kappa": 1.0}
        yield Case("House Prices", sides, house_prices.LOOP, targets)
    except InputError as error:
        print(f"left out: {error}")


def per_step(
    case: Case, settings: released_loop.Settings, runs: int = 1, device: str = "cpu"
) -> float:
    """Return the seconds of a step of a stack of runs, over 64 steps or more; as many warm up."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    dimension, count = case.sides[0][0].shape[1], len(case.sides[0][0])
    rows = [torch.arange(count)] * runs
    sides = [released_loop.Side(x.to(device), rows, [y] * runs) for x, y in case.sides]
    starts = [released_loop.initial(dimension, 0)] * runs
    epochs, seconds = -(-64 * settings.batch // count), 0.0
    for _ in range(2):
        began = clock()
        found = list(released_loop.run(starts, *sides, settings, (epochs,), range(runs), device))
        float(found[-1][2].sum())  # waits for the device
        seconds = clock() - began
    return seconds / (epochs * (count // settings.batch))


def oracle_step(case: Case, settings: released_loop.Settings) -> float:
    """Return the seconds of a step of the oracle."""
    rows = torch.arange(STEPS * settings.batch) % len(case.sides[0][0])
    tensors = [each[rows].double().split(settings.batch) for side in case.sides for each in side]
    batches = [[batch] for batch in zip(*tensors, strict=True)]
    began = time.process_time()
    released_run(released_loop.initial(case.sides[0][0].shape[1], 0), batches, settings)
    return (time.process_time() - began) / STEPS


def main() -> int:
    """Time both, print the ratios, and save a record where a path is given."""
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cpu", help="where a stack of runs is timed too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ratios = {}
    for case in cases():
        for objective, target in case.targets.items():
            settings = dataclasses.replace(case.settings, objective=objective)
            naive, ours = oracle_step(case, settings), per_step(case, settings)
            name = {"algorithm_1": "Algorithm 1", "opt_kappa": "Opt κ"}[objective]
            what = f"a step of {name} on {case.name}: our naive port {1e3 * naive:.3g} ms, "
            what += f"ours {1e3 * ours:.3g} ms"
            ratios[f"{case.name} {objective}"] = line(what, naive / ours, target)
        if case.name == "MNIST" and given.device != "cpu":
            stacks(case, given.device)
    save(given.record, "reproduce", {"ratios": ratios})
    return int(not all(row["met"] for row in ratios.values()))


def stacks(case: Case, device: str) -> None:
    """Print the milliseconds of a step of a stack of runs, and of measuring one."""
    for objective in get_args(released_loop.Objective):
        settings = dataclasses.replace(case.settings, objective=objective)
        seconds = per_step(case, settings, STACK, device)
        print(f"     {objective}: {1e3 * seconds:.2f} ms a step of {STACK} runs")
    start, pair = released_loop.initial(784, 0), Pair(*(x.to(device) for x, _ in case.sides))
    began = time.perf_counter()
    pair.kappas(linear(start.weight.to(device), start.bias.to(device)), 3)
    print(f"     both κ of a layer: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    sys.exit(main())
