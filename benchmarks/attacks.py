"""Searches in one computation against one setting at a time, each measured in this run.

10,000x512 features of 20 classes, as in ``benchmarks/audit.py``. The ratio is of the time for the
whole grid of an attack; both find the same scores, or the line misses. With a path as argument,
the ratios are saved there as a record.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from torch import Tensor

from common import arguments, line, save
from immunis import Task
from immunis.attacks import ATTACKS
from immunis.attacks.arrays import Samples
from immunis.attacks.contract import Arena
from immunis.attacks.search import curves, space_of
from immunis.models.find_cut import cut

TARGETS = {"ridge": 3.0, "kernel": 1.3, "adam": 1.0, "sgd": 1.0}
CLOSE = 5e-3  # of a score: Adam divides by the size of a gradient, so rounding shows


def arena() -> Arena:
    """Return synthetic clusters whose directions differ in size."""
    torch.manual_seed(0)
    d, classes = 512, 20
    centres = torch.randn(classes, d) * 0.35

    def sample(n: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(n) % classes
        return centres[labels] + torch.randn(n, d) * torch.logspace(0, -2, d), labels

    samples = Samples.of(Task(sample(8000), sample(2000), "attacker"))
    features = {"": (samples.train.inputs, samples.test.inputs)}
    return Arena(cut(torch.eye(d), torch.ones(2, d)), **vars(samples), cache=features, budget=250)


def main() -> int:
    """Run the grid of each attack both ways, and print a line each."""
    given, where, ratios = arguments(__doc__).parse_args(), arena(), {}
    torch.set_num_threads(1)
    for name, target in TARGETS.items():
        attack = ATTACKS[name]
        space = space_of(attack, where)
        grids = np.meshgrid(*map(np.arange, map(len, space.values())), indexing="ij")
        places = zip(*(grid.ravel() for grid in grids), strict=True)
        choices = [{n: space[n][i] for n, i in zip(space, p, strict=True)} for p in places]
        start = time.perf_counter()
        alone = [curves(attack, where, [choice])[0] for choice in choices]
        middle = time.perf_counter()
        both = curves(attack, where, choices)
        end = time.perf_counter()
        loop, ours = middle - start, end - middle
        gaps = [abs(a[-1].test - b[-1].test) for a, b in zip(alone, both, strict=True)]
        what = f"{name}, {len(choices)} settings: one at a time {loop:.2f} s, together {ours:.2f} s"
        ratios[name] = line(what, loop / ours, target, max(gaps) <= CLOSE)
    save(given.record, "searches in one computation, 10,000x512", {"ratios": ratios})
    return int(not all(row["met"] for row in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
