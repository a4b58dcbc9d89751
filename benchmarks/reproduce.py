"""How much faster the MNIST sweep is than the naive per-batch version; part of ``make bench``.

The naive version is the paper's pseudo-code in ``tests/helpers/reference.py``: autograd
through two 784×784 decompositions and two inverses. Ours makes the same step from 64×64 matrices
in the joint range of the two digits. Both are timed on one thread. Exits with 1 if the ratio
misses its target. With a path as argument, the ratios are saved there as a record.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.reference import naive_algorithm_1
from immunis import Record
from immunis.core.errors import InputError
from immunis.data.sources.mnist import mnist_images, standardised
from immunis.paper import digits, released_loop
from immunis.paper.mnist import LOOP
from immunis.paper.rows import initial

PAIR, NAIVE_STEPS, TARGET = (3, 7), 8, 20.0


def naive_step(x_p: torch.Tensor, x_h: torch.Tensor) -> float:
    """Seconds of one step of the pseudo-code."""
    targets = torch.zeros(len(x_p), 1, dtype=torch.float64)
    start = time.perf_counter()
    naive_algorithm_1(
        x_p, targets, x_h, theta=initial(784, 0), epochs=1, step=LOOP.step,
        lambda_p=LOOP.lambda_primary, lambda_h=LOOP.lambda_harmful, max_steps=NAIVE_STEPS,
    )  # fmt: skip
    return (time.perf_counter() - start) / NAIVE_STEPS


def our_step(x_p: torch.Tensor, x_h: torch.Tensor) -> float:
    """Seconds of one step of the released loop, over one epoch."""
    theta = initial(x_p.shape[1], 0).to(x_p)
    start = time.perf_counter()
    list(released_loop.run(theta, (x_p, torch.zeros(len(x_p))), x_h, LOOP, (1,)))
    return (time.perf_counter() - start) / (len(x_p) // LOOP.batch)


def main() -> int:
    """Time both, print the ratio, and save a record where a path is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", nargs="?", help="where to save the figures")
    given = parser.parse_args()
    begun = time.perf_counter()
    torch.set_num_threads(1)
    try:
        images, labels = mnist_images()
    except InputError as error:
        print(f"left out: {error}")
        return 0
    tasks = [digits.digit_task((images, labels), digit) for digit in PAIR]
    count = min(len(task.images) for task in tasks)
    pixels = [torch.from_numpy(standardised(task.images[:count])) for task in tasks]
    basis = digits.joint_basis(*(task.gram for task in tasks))
    inside = [digits.coordinates(task.images[:count], basis) for task in tasks]
    naive = naive_step(*pixels)
    exact = our_step(*pixels)
    joined = our_step(*(x.float() for x in inside))
    ratios = {}
    for name, seconds, what in (
        ("closed_form", exact, "64×64 closed forms, 784 pixels, float64"),
        (
            "sweep",
            joined,
            f"the same in the joint range ({inside[0].shape[1]}), float32: the sweep",
        ),
    ):
        ratio, target = naive / seconds, TARGET if name == "sweep" else TARGET / 2
        line = f"a step of Algorithm 1 on MNIST {PAIR[0]}/{PAIR[1]}: naive {1e3 * naive:.0f} ms; {what}: {1e3 * seconds:.1f} ms"  # noqa: E501
        ratios[name] = {"what": line, "ratio": ratio, "target": target, "met": ratio >= target}
        print(
            f"{'ok  ' if ratio >= target else 'MISS'} {ratio:.3g}x (target {target:.3g}x)  {line}"
        )
    if given.record:
        spent = time.perf_counter() - begun
        Record("bench", "reproduce", {"ratios": ratios}, seed=0, seconds=spent).save(given.record)
    return int(not all(row["met"] for row in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
