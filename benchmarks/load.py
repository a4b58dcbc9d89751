"""What large work takes in memory and time: ``make bench``.

Each part runs in a process of its own, so that its peak memory is its own: 10 million × 256
features streamed; a Gram of 8192 dimensions; an audit of 20 models, against one of 4; a sweep of
5,000 runs; the start of the command line. Times on a busy machine say little; ratios within one
line and memory say more. Exits with 1 if a target is missed. With a path as argument, the figures
are saved there as a record.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from common import arguments, save
from immunis import Task, audit, gram, immunize
from immunis.core.jobs import Job, Run, sweep
from immunis.theory.gram import gram_of

GB = 1 << 30
Line = tuple[str, float, float, bool]  # what, figure, target, is the target an upper bound?


def peak() -> float:
    """Largest memory this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def now() -> float:
    """Memory this process holds now, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * float(resource.getpagesize())


class Rows(IterableDataset):
    """Many rows made as they are read: one block of noise, scaled anew each time."""

    def __init__(self, rows: int, dimension: int, block: int) -> None:
        super().__init__()
        self.count = rows // block
        generator = torch.Generator().manual_seed(0)
        self.block = torch.randn(block, dimension, generator=generator)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield blocks of features with labels that say nothing."""
        for i in range(self.count):
            yield self.block * (1 + i / self.count), torch.zeros(len(self.block))


def streamed() -> list[Line]:
    """10,000,000 × 256 float32 features (10 GB) into a Gram."""
    rows = Rows(10_000_000, 256, 10_000)
    start = time.perf_counter()
    found = gram(DataLoader(rows, batch_size=None))
    taken = time.perf_counter() - start
    what = f"{found.samples:,} x 256 features streamed in {taken:.0f} s: peak memory in GB"
    return [(what, peak() / GB, 1.0, True)]


def wide() -> list[Line]:
    """A Gram of D = 8192, in blocks."""
    d, block = 8192, 512
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(0, -2, d, dtype=torch.float64)
    first = torch.randn(block, d, generator=generator, dtype=torch.float64) * scales
    moments = gram_of(first)
    held, start = peak(), time.perf_counter()
    for _ in range(23):
        moments.add(torch.randn(block, d, generator=generator, dtype=torch.float64) * scales)
    taken, grown = time.perf_counter() - start, peak() - held
    return [
        (
            f"Gram of {moments.samples:,} x {d} in blocks of {block}, {taken:.0f} s: memory added "
            f"by 23 blocks, in copies of the {8 * d * d / GB:.1f} GB matrix",
            grown / (8.0 * d * d),
            1.0,
            True,
        )
    ]


def clusters(n: int, d: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Five classes that differ in their means."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 5
    return torch.eye(5, d)[labels] * 2 + torch.randn(n, d, generator=generator), labels


def audited() -> list[Line]:
    """An audit of 20 models against one of 4."""
    d = 32
    primary = Task(clusters(600, d, 0), clusters(200, d, 1), "primary")
    defender = Task(clusters(600, d, 2), name="harmful")
    attacker = Task(clusters(600, d, 3), clusters(200, d, 4), "attacker")
    eye = torch.eye(d)
    models: dict[str, Any] = {"original": eye}
    for i in range(19):
        models[f"erase {i}"] = immunize(eye, primary, defender, "erase", strength=0.5**i)
    taken, memory = [], []
    for count in (2, 4, 20):  # the first pays for imports and caches, and is left out
        some = dict(list(models.items())[:count])
        start = time.perf_counter()
        effort = {"seeds": 1, "budget": 100}
        audit(some, primary, attacker, attacks="quick", defender=defender, effort=effort)
        taken.append((time.perf_counter() - start) / count)
        memory.append(peak())
    return [
        (
            f"audit of 20 models: {taken[2]:.2f} s a model; ratio to the time a model of an audit "
            "of 4",
            taken[2] / taken[1],
            1.5,
            True,
        ),
        (
            f"audit of 20 models: peak {memory[2] / GB:.2f} GB; ratio to the peak of an audit of 4",
            memory[2] / memory[1],
            1.2,
            True,
        ),
    ]


def one_run(seed: int) -> float:
    """A small immunization, as a sweep over seeds has many of."""
    tasks = (Task(clusters(60, 8, seed + i)) for i in (0, 1))
    result = immunize(torch.eye(8), *tasks, "condition", seed=seed, steps=3)
    return float(result.model.weight.sum())


def swept() -> list[Line]:
    """A sweep of 5,000 runs in one process, results kept on disk: is its memory flat?"""
    curve: list[float] = []
    count, every = 5000, 250

    def watch(label: str, share: float) -> None:
        if round(share * count) % every == 0:
            curve.append(now())

    jobs = {f"run-{i}": Job(one_run, (i,), str(i)) for i in range(count)}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        sweep(jobs, Run(folder=folder, progress=watch))
    taken = time.perf_counter() - start
    grown = max(curve[2:]) - curve[1]  # the first tenth fills caches
    steps = ", ".join(f"{value / (1 << 20):.0f}" for value in curve[1::3])
    what = (
        f"sweep of {count:,} runs, {1e3 * taken / count:.1f} ms each, memory in MB on the way "
        f"{steps}: growth after the first tenth in MB"
    )
    return [(what, grown / (1 << 20), 20.0, True)]


def started() -> list[Line]:
    """``immunis --version`` against an import of torch, which it does without; best of five."""

    def best(*words: str) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - start)
        return min(times)

    ours, torch_alone = best("-m", "immunis", "--version"), best("-c", "import torch")
    what = f"immunis --version in {ours:.2f} s, import torch in {torch_alone:.2f} s: ratio"
    return [(what, ours / torch_alone, 0.6, True)]


PARTS: dict[str, Callable[[], list[Line]]] = {
    part.__name__: part for part in (streamed, wide, audited, swept, started)
}


def main() -> int:
    """Run every part in a process of its own, print its lines, save a record where asked."""
    parser = arguments(__doc__)
    parser.add_argument("--part", choices=PARTS, help="run one alone and print its lines as JSON")
    given = parser.parse_args()
    if given.part:
        warnings.simplefilter("ignore")
        print(json.dumps(PARTS[given.part]()))
        return 0
    rows = {}
    for name in PARTS:
        done = subprocess.run(
            [sys.executable, __file__, "--part", name],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        for number, (what, figure, target, upper) in enumerate(json.loads(done.stdout)):
            good = figure <= target if upper else figure >= target
            bound = "at most" if upper else "at least"
            rows[f"{name}-{number}"] = {
                "what": what, "figure": figure, "bound": bound, "target": target, "met": good,
            }  # fmt: skip
            print(f"{'ok  ' if good else 'MISS'} {figure:.3g} ({bound} {target:g})  {what}")
    where = {"cores": len(os.sched_getaffinity(0)), "threads": torch.get_num_threads()}
    save(given.record, "load", {"rows": rows}, **where)
    return int(not all(row["met"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
