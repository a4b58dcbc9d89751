"""Ratios against named baselines, each measured in this run: ``make bench``.

Baselines are the naive versions in ``tests/helpers/reference.py`` (the paper's pseudo-code, batch
by batch, by autograd through decompositions) and torch's bare matrix product. A line whose data is
missing says so and is left out. Exits with 1 if a ratio misses its target. With a path as
argument, the ratios are saved there as a record.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import torch

from common import arguments, line, naive_algorithm_1, save
from immunis import RankWarning, Task, gram, immunize, relative_immunization_ratio
from immunis.core.errors import InputError
from immunis.data.sources import house_prices, mnist_pair
from immunis.paper.released_loop import initial


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """Shortest wall time of ``call`` over a few repeats, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def algorithm_1() -> tuple[str, float, float, bool]:
    """Algorithm 1 on House Prices: time to an honest RIR at least as high as the naive one's."""
    tasks = house_prices()
    theta = initial(79, 0)
    (x_p, y_p), (x_h, _) = (t.train.tensors() for t in (tasks.primary, tasks.harmful))
    start = time.perf_counter()
    found = naive_algorithm_1(
        x_p, y_p[:, None], x_h, theta=theta, epochs=100, step=0.005, lambda_p=100, lambda_h=1e7
    )
    naive = time.perf_counter() - start
    target = relative_immunization_ratio(found, tasks.primary, tasks.harmful).value
    run = lambda: immunize(theta, tasks.primary, tasks.harmful, "condition", certified=True)  # noqa: E731
    ours = seconds(run)
    reached = relative_immunization_ratio(run().model, tasks.primary, tasks.harmful).value
    what = (
        f"Algorithm 1, House Prices: naive 100 epochs {naive:.2f} s to RIR {target:.3g}; "
        f"certified {ours:.4f} s to RIR {reached:.3g}"
    )
    return what, naive / ours, 30, reached >= target


def frontier() -> tuple[str, float, float, bool]:
    """Frontier on an MNIST pair against 30 naive epochs, extrapolated from 20 steps."""
    tasks = mnist_pair(3, 7)
    theta = initial(784, 0)
    (x_p, y_p), (x_h, _) = (t.train.tensors() for t in (tasks.primary, tasks.harmful))
    steps, batch = 20, 64
    start = time.perf_counter()
    naive_algorithm_1(
        x_p, y_p.double()[:, None], x_h, theta=theta, epochs=1, step=0.001, lambda_p=1,
        lambda_h=5e7, batch=batch, max_steps=steps,
    )  # fmt: skip
    per_step = (time.perf_counter() - start) / steps
    naive = per_step * 30 * (max(len(x_p), len(x_h)) // batch)
    ours = seconds(lambda: immunize(theta, tasks.primary, tasks.harmful, "frontier"), 2)
    what = (
        f"frontier, MNIST 3/7, D = 784: naive {naive:.0f} s for 30 epochs (extrapolated from "
        f"{steps} steps of {per_step:.2f} s); closed form {ours:.2f} s"
    )
    return what, naive / ours, 300, True


def streamed_gram() -> tuple[str, float, float, bool]:
    """Gram of 60,000×784 against the bare product; the ratio is bare over ours."""
    x = torch.rand(60_000, 784, dtype=torch.float64)
    task = Task((x, torch.zeros(60_000)))
    bare, ours = seconds(lambda: x.T @ x), seconds(lambda: gram(task))
    what = f"Gram of 60,000x784: bare product {bare:.2f} s, streamed with moments {ours:.2f} s"
    return what, bare / ours, 1 / 1.5, True


def main() -> int:
    """Run every benchmark, print one line each, and save a record where a path is given."""
    given = arguments(__doc__).parse_args()
    warnings.simplefilter("ignore", RankWarning)
    ratios = {}
    for bench in (streamed_gram, algorithm_1, frontier):
        try:
            what, ratio, target, sound = bench()
        except InputError as error:
            print(f"left out: {bench.__name__}: {error}")
            continue
        ratios[bench.__name__] = line(what, ratio, target, sound)
    save(given.record, "core", {"ratios": ratios})
    return int(not all(row["met"] for row in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
