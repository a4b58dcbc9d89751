"""Table 2 and the heat maps: all ordered pairs of MNIST digits, under two protocols."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from immunis.core.jobs import Job
from immunis.core.settings import require, whole
from immunis.data.sources.digits import SHA256, check_apart, mnist_hashes, mnist_images
from immunis.data.task import Task
from immunis.paper import digits, released_loop
from immunis.paper.digits import ATTACKER, DEFENDER, PRIMARY, DigitTask, Labelled, against_rest
from immunis.paper.measures import ATTACKS, KINDS, Pair, attack, paid
from immunis.paper.published import LARGE, compare, printed
from immunis.paper.rows import IDENTITY, ROWS, run_method

LOOP = released_loop.Settings(
    step=5e-3, lambda_primary=1.0, lambda_harmful=5e7, ridge_harmful=1e-7, loss="logistic"
)
FIXED = {"deterministic": ["frontier", "erase"], "loop_dtype": "float32"}
PROTOCOLS = ("paper", "binary")
Images = tuple[Labelled, Labelled]  # training and test
Runs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Settings:
    """How much to run."""

    pairs: tuple[tuple[int, int], ...] = tuple(itertools.permutations(range(10), 2))
    seeds: int = 3  # repeats in the paper's protocol, each with its own start, sample and batches
    binary_seeds: int = 1  # repeats in the binary protocol
    epochs: int = 5  # of the loop at step 0.005, and steps of IMMA; the paper has 30
    plain_seeds: int = 1  # repeats of plain Opt κ in the paper's protocol
    table_seeds: int = 1  # repeats of Algorithm 1 with the table's own step and 30 epochs
    attack_rows: int = 1000  # labelled images an attacker holds
    budget: int = 200  # steps an attacker may take

    def __post_init__(self) -> None:
        """Check the pairs and ranges."""
        require(bool(self.pairs), "pairs=(): expected at least one pair of digits.")
        for primary, harmful in self.pairs:
            check_apart([primary], [harmful])
        least = dict.fromkeys(("seeds", "binary_seeds", "epochs", "budget"), 1)
        for name, bound in {**least, "plain_seeds": 0, "table_seeds": 0, "attack_rows": 20}.items():
            whole(getattr(self, name), name, bound)


SIX = ((3, 7), (7, 3), (0, 1), (1, 0), (4, 9), (5, 8))
QUICK = Settings(SIX, 1, epochs=1, plain_seeds=0, table_seeds=0, attack_rows=500, budget=20)


class Line(NamedTuple):
    """A row to make: its name in records, the method, its step size, and the epochs to stop at."""

    name: str
    method: str
    step: float | None = None
    epochs: tuple[int, ...] = ()


TABLE = Line("algorithm_1_table", "algorithm_1", 1e-3, (1, 3, 5, 10, 20, 30))  # the paper's own
CLOSED = [Line(name, name) for name in FIXED["deterministic"]]


def _lines(settings: Settings, *names: str) -> list[Line]:
    return [Line(name, name, LOOP.step, (settings.epochs,)) for name in names]


def read(data: str | Path | None) -> tuple[Images, dict[str, Any]]:
    """Return the training and test images of the four idx files, and a record's ``data``."""
    hashes = mnist_hashes(data)
    strange = [name for name, found in hashes.items() if found != SHA256[name]]
    if strange:
        what = f"{', '.join(strange)}: not the original MNIST files"
        wanted = f"expected sha256 {SHA256[strange[0]]} for {strange[0]}"
        warnings.warn(f"{what} ({wanted}); figures may differ.", stacklevel=4)
    images = mnist_images(True, data), mnist_images(False, data)
    return images, {"sha256": hashes, "as_expected": not strange}


def jobs(images: Images, settings: Settings) -> Iterator[tuple[tuple[Any, ...], Job]]:
    """Yield one job for each protocol, pair and seed, after what decides its result.

    Every pair comes once before any comes again, so an early stop leaves a whole table.
    """
    train, test = images
    extent = ("pairs", "seeds", "binary_seeds", "plain_seeds", "table_seeds")  # how many runs
    same = {k: v for k, v in dataclasses.asdict(settings).items() if k not in extent}
    task = cache(partial(digits.digit_task, train))  # once for all pairs of a digit
    attacker = cache(lambda h: (against_rest(train, h, ATTACKER), against_rest(test, h)))
    both = list(itertools.product(settings.pairs, PROTOCOLS))
    plan: list[tuple[str, str, tuple[int, int], int | None, list[Line]]] = [
        (f"{protocol}, closed form", protocol, pair, None, CLOSED) for pair, protocol in both
    ]  # what draws no random numbers
    drawn = _lines(settings, "r_ill", "imma", "opt_log_kappa", "algorithm_1")
    seeds = {"paper": settings.seeds, "binary": settings.binary_seeds}
    for seed in range(max(seeds.values())):
        plan += [(name, name, pair, seed, drawn) for pair, name in both if seed < seeds[name]]
    plain = _lines(settings, "opt_kappa")
    for pair in settings.pairs:
        table = range(settings.table_seeds)
        plan += [("30 epochs", "paper", pair, seed, [TABLE]) for seed in table]
        plan += [("Opt κ", "paper", pair, seed, plain) for seed in range(settings.plain_seeds)]
    for kind, protocol, (p, h), number, lines in plan:
        tasks, own = (task(p), task(h)), None
        if protocol == "binary":
            tasks, own = (task(p, PRIMARY), task(h, DEFENDER)), attacker(h)
        arguments = (protocol, (p, h), number, lines, settings, tasks, own)
        yield (*arguments[:4], same), Job(run_pair, arguments, f"{kind}: {p} against {h}")


def run_pair(
    protocol: str,
    pair: tuple[int, int],
    seed: int | None,
    lines: Sequence[Line],
    settings: Settings,
    both: tuple[DigitTask, DigitTask],
    attacker: tuple[Labelled, Labelled] | None,
) -> dict[str, Any]:
    """Run some methods on one pair; without a seed, measure the pair and the identity too."""
    start, drawn, samples = time.perf_counter(), seed or 0, None
    basis = digits.joint_basis(both[0].gram, both[1].gram)
    measures = Pair(*(task.gram.transform(basis) for task in both))
    tasks, rng = [], np.random.default_rng(drawn)
    for images, labels, _ in both:  # in float32, their rows paired as in the released code
        count = min(len(task.images) for task in both)
        rows = np.sort(rng.choice(len(images), count, replace=False))
        inputs = digits.coordinates(images[rows], basis).float()
        tasks.append(Task((inputs, torch.from_numpy(labels[rows]))))
    if attacker is not None:
        samples = digits.attacker_samples(*attacker, basis, settings.attack_rows, drawn)

    def more(theta: torch.Tensor) -> dict[str, Any]:
        return {"attacks": attack(theta, samples, settings.budget, drawn)} if samples else {}

    methods = {}
    for name, method, step, epochs in [Line(IDENTITY, IDENTITY), *lines] if seed is None else lines:
        loop = dataclasses.replace(LOOP, step=step or LOOP.step)
        path, cells = run_method(
            method, measures, (tasks[0], tasks[1]), loop, epochs, epochs[-1:], drawn, more
        )
        (cell,) = cells.values()
        methods[name] = {"path": path, **cell}
    return {
        "protocol": protocol,
        "pair": list(pair),
        "seed": seed,
        "methods": methods,
        "figures": measures.figures() if seed is None else {},
        "seconds": time.perf_counter() - start,
    }


def figures(images: Any, settings: Settings, results: Runs) -> dict[str, Any]:
    """Return rows, maps, ceilings and attackers of both protocols, and the path of Algorithm 1."""
    names = ("r_ill", "imma", "opt_kappa", "opt_log_kappa", "algorithm_1")
    lines = [*_lines(settings, *names), TABLE, *CLOSED]
    said = {"paper": printed("mnist")["methods"], "binary": {}}
    points = [
        [*run["pair"], run["seed"], epochs, *(float(f"{rir:.5g}") for rir in ratios)]
        for run in results
        for epochs, *ratios in run["methods"].get(TABLE.name, {}).get("path", [])
    ]
    return {
        "protocols": {
            protocol: _protocol([r for r in results if r["protocol"] == protocol], lines, found)
            for protocol, found in said.items()
        },
        "path": {"step": TABLE.step, "points": points},
        "core_seconds": sum(run["seconds"] for run in results),
    }


def _protocol(runs: Runs, lines: Sequence[Line], said: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the rows that any run holds, their maps, and the figures of all pairs."""
    rows, maps, pairs = [], {}, {}
    for name, method, step, epochs in lines:
        cells = [(run, run["methods"][name]) for run in runs if name in run["methods"]]
        if not cells:
            continue
        row = compare(said.get(ROWS[method].said), [(run["seed"], cell) for run, cell in cells])
        if "honest" in row:
            maps[name] = {kind: _map(cells, kind) for kind in KINDS}
            row["successes"] = {kind: _count(maps[name][kind]) for kind in KINDS}
        row |= {"name": name, "method": method, "label": ROWS[method].label, "step": step}
        row["epochs"] = epochs[-1] if epochs else None
        rows.append({**row, "attacks": _attacked(runs, name)})
    for run in sorted((run for run in runs if run["seed"] is None), key=itemgetter("pair")):
        found = run["figures"]
        sides = [found["primary"], found["harmful"]]
        pairs["{} {}".format(*run["pair"])] = {
            **{key: found[key] for key in ("ceiling", "ridge_ceiling", "free_directions")},
            "kappa": [side[kind] for side in sides for kind in KINDS],
            "ranks": [side["rank"] for side in sides],
            "dimension": sides[0]["dimension"],
        }
    return {"rows": rows, "maps": maps, "pairs": pairs, "identity": _attacked(runs, IDENTITY)}


def _map(cells: Sequence[tuple[Any, Any]], kind: str) -> list[list[float | None]]:
    """Return log RIR by primary and harmful digit, mean over seeds; None where there is none."""
    found: dict[tuple[int, ...], list[float]] = {}
    for run, cell in cells:
        if "ratios" in cell:
            found.setdefault(tuple(run["pair"]), []).append(math.log(cell["ratios"][kind]["rir"]))
    means = {pair: round(float(np.mean(values)), 4) for pair, values in found.items()}
    return [[means.get((p, h)) for h in range(10)] for p in range(10)]


def _count(cells: Sequence[Sequence[float | None]]) -> dict[str, int]:
    """Count the pairs that succeed: RIR of at least ten, and (the weakest reading) above one."""
    known = [value for line in cells for value in line if value is not None]
    large, above = sum(v >= math.log(LARGE) for v in known), sum(v > 0 for v in known)
    return {"pairs": len(known), "large": large, "above_one": above}


def _attacked(runs: Runs, name: str) -> dict[str, Any]:
    """Return what each attack reaches over the pairs: mean accuracy by step, and its cost."""
    inputs = {tuple(r["pair"]): r["methods"][IDENTITY] for r in runs if IDENTITY in r["methods"]}
    each = []
    for run in runs:
        found = run["methods"].get(name, {})
        if "attacks" in found:
            both = {IDENTITY: [inputs[tuple(run["pair"])]["attacks"]], name: [found["attacks"]]}
            each.append(paid(both, IDENTITY, 0.5)[name])
    summary = {}
    for which in ATTACKS:
        good = [row[which] for row in each if "score" in row[which]]
        if good:
            curves = zip(*(row["curve"] for row in good), strict=True)  # the points of a step
            scores = [row["score"]["median"] for row in good]
            summary[which] = {
                "score": {"mean": float(np.mean(scores)), "low": min(scores), "high": max(scores)},
                "multiplier": float(np.median([row["multiplier"] for row in good])),
                "curve": [
                    {"steps": each[0]["steps"], "mean": float(np.mean([p["median"] for p in each]))}
                    for each in curves
                ],
                "runs": len(good),
            }
    return summary
