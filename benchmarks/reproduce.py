"""How much faster the MNIST sweep is than the naive per-batch version; part of ``make bench``.

The naive version is the paper's pseudo-code in ``tests/helpers/reference.py``: autograd
through two 784×784 decompositions and two inverses. Ours makes the same step from 64×64 matrices
in the joint range of the two digits. Both are timed on one thread. Exits with 1 if the ratio
misses its target. With a path as argument, the ratios are saved there as a record.
"""

from __future__ import annotations

import sys
import time

import torch

from common import arguments, line, naive_algorithm_1, save
from immunis.core.errors import InputError
from immunis.data.sources.digits import mnist_images, standardised
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
    given = arguments(__doc__).parse_args()
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
    start = f"a step of Algorithm 1 on MNIST {PAIR[0]}/{PAIR[1]}: naive {1e3 * naive:.0f} ms"
    joint = f"the same in the joint range ({basis.shape[1]}), float32: the sweep"
    ours = {
        "closed_form": (exact, TARGET / 2, "64×64 closed forms, 784 pixels, float64"),
        "sweep": (joined, TARGET, joint),
    }
    ratios = {
        name: line(f"{start}; {what}: {1e3 * seconds:.1f} ms", naive / seconds, target)
        for name, (seconds, target, what) in ours.items()
    }
    save(given.record, "reproduce", {"ratios": ratios})
    return int(not all(row["met"] for row in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
