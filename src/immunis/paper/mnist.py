"""Table 2 and the heat maps: all ordered pairs of MNIST digits, under two protocols."""

from __future__ import annotations

import dataclasses
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from immunis.attacks.contract import Samples
from immunis.core.errors import InputError, NumericalError, SettingsError
from immunis.core.hashing import key_of
from immunis.core.jobs import Job, Run, sweep
from immunis.core.records import Record
from immunis.core.version import __version__
from immunis.data import task as tasks
from immunis.data.sources.mnist import SHA256, mnist_hashes, mnist_images
from immunis.methods import LinearProblem
from immunis.paper import loop
from immunis.paper.attackers import ORIGINAL, attack, subset
from immunis.paper.digits import ATTACKER, DEFENDER, PRIMARY, Digits, JointRange, Task, check_pair
from immunis.paper.judgement import KINDS, published
from immunis.paper.measures import Pair
from immunis.paper.methods import ROWS, Setting
from immunis.paper.summary import Line, summarise_protocol

NAME = "mnist"
SEEDED = ("r_ill", "imma", "opt_log_kappa", "algorithm_1")
PLAIN = ("opt_kappa",)
CLOSED = ("frontier", "erase")
PROTOCOLS = ("paper", "binary")
QUICK = ((3, 7), (7, 3), (0, 1), (1, 0), (4, 9), (5, 8))
LOOP = loop.Settings(
    step=5e-3, lambda_primary=1.0, lambda_harmful=5e7, ridge_primary=1.0, ridge_harmful=1e-7,
    loss="logistic",
)  # fmt: skip
TABLE, TABLE_STEP, TABLE_EPOCHS = "algorithm_1_table", 1e-3, (1, 3, 5, 10, 20, 30)
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Settings:
    """How much to run.

    Attributes:
        pairs: (primary, harmful) digits; all 90 by default.
        seeds: repeats in the paper's protocol: start, sample and batches are drawn anew.
        binary_seeds: repeats in the binary protocol.
        epochs: of the released loop at the step size of the paper's text, 0.005; full-batch
            steps of IMMA. The paper has 30; five fit two cores.
        plain_seeds: repeats of plain Opt κ in the paper's protocol; 0 leaves it out.
        table_seeds: repeats of Algorithm 1 with the table's own step and 30 epochs; 0 for none.
        attack_rows: labelled images an attacker holds.
        budget: steps an attacker may take.
    """

    pairs: tuple[tuple[int, int], ...] = tuple(itertools.permutations(range(10), 2))
    seeds: int = 3
    binary_seeds: int = 1
    epochs: int = 5
    plain_seeds: int = 1
    table_seeds: int = 1
    attack_rows: int = 1000
    budget: int = 200

    def __post_init__(self) -> None:
        """Check the pairs and ranges."""
        for primary, harmful in self.pairs:
            check_pair(primary, harmful)
        for name in ("seeds", "binary_seeds", "epochs", "budget"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}={getattr(self, name)}: need at least 1.")
        for name in ("plain_seeds", "table_seeds"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name}={getattr(self, name)}: need at least 0.")
        if not self.pairs or self.attack_rows < 20:
            raise SettingsError(
                f"{len(self.pairs)} pairs, attack_rows={self.attack_rows}: need a pair and 20 rows."
            )


def quick() -> Settings:
    """Six pairs, one seed, one epoch, weaker attackers; nothing at the table's 30 epochs."""
    return Settings(
        pairs=QUICK, seeds=1, epochs=1, plain_seeds=0, table_seeds=0, attack_rows=500, budget=20
    )


def reproduce(
    data: str | Path | None = None,
    settings: Settings | None = None,
    *,
    workers: int = 1,
    cluster: str | None = None,
    folder: str | Path | None = None,
    progress: Progress = lambda what, share: None,
) -> Record:
    """Run every method on pairs of digits and compare with the paper's table 2.

    Args:
        data: folder that holds ``mnist/`` with the four idx files; see ``data_file``.
        settings: how much to run; everything if left out.
        workers: processes on this machine.
        cluster: address of a Ray cluster.
        folder: where finished pairs are kept, to go on from after an interruption.
        progress: called with what was done and the share of the whole.
    """
    start, settings = time.perf_counter(), settings or Settings()
    progress("reading MNIST", 0.0)
    digits, hashes, strange = _read(data)
    todo = dict(_jobs(digits, settings, hashes))
    results = sweep(todo, Run(workers, cluster, folder, progress=progress))
    found = [result for result in results.values() if "protocol" in result]
    paths = [result for result in results.values() if "table" in result]
    found += [_as_run(path) for path in paths]
    return Record(
        kind="reproduce",
        name=NAME,
        figures={
            "protocols": {
                protocol: summarise_protocol(
                    [r for r in found if r["protocol"] == protocol],
                    _lines(settings),
                    published(NAME)["methods"] if protocol == "paper" else {},
                )
                for protocol in PROTOCOLS
            },
            "path": {
                "step": TABLE_STEP,
                "points": [
                    [*path["pair"], path["seed"], point["epochs"]]
                    + [float(f"{point['ratios'][kind]['rir']:.5g}") for kind in KINDS]
                    for path in paths
                    for point in path["table"]
                ],
            },
            "core_seconds": sum(result["seconds"] for result in results.values()),
        },
        settings={
            **dataclasses.asdict(settings),
            "loop": dataclasses.asdict(LOOP),
            "published": published(NAME)["table"],
            "deterministic": CLOSED,
            "loop_dtype": "float32",
        },
        data={"sha256": hashes, "as_expected": not strange},
        seed=0,
        seconds=time.perf_counter() - start,
    )


def jobs(data: str | Path | None, settings: Settings) -> dict[str, Job]:
    """What ``reproduce`` runs."""
    digits, hashes, _ = _read(data)
    return dict(_jobs(digits, settings, hashes))


def _read(data: str | Path | None) -> tuple[Digits, dict[str, str], list[str]]:
    """The images, the hashes of their files, and which of these are not as they should be."""
    digits = Digits(*mnist_images(True, data), *mnist_images(False, data))
    hashes = mnist_hashes(data)
    strange = [name for name, found in hashes.items() if found != SHA256[name]]
    if strange:
        warnings.warn(
            f"{', '.join(strange)}: not the original MNIST files (expected sha256 "
            f"{SHA256[strange[0]]} for {strange[0]}); figures cannot be compared with the paper's.",
            stacklevel=3,
        )
    return digits, hashes, strange


def _lines(settings: Settings) -> list[Line]:
    """Rows of both protocols; Algorithm 1 also at the table's own setting."""
    looped = [Line(n, n, LOOP.step, settings.epochs) for n in ROWS if n in (*SEEDED, *PLAIN)]
    table = Line(TABLE, "algorithm_1", TABLE_STEP, TABLE_EPOCHS[-1])
    return [*looped, table, *(Line(n, n) for n in CLOSED)]


def _as_run(path: Mapping[str, Any]) -> dict[str, Any]:
    """Where Algorithm 1 ends at the table's setting, as a run of the paper's protocol."""
    done: dict[str, Any] = {"failed": f"θ was not finite after {TABLE_EPOCHS[-1]} epochs"}
    if len(path["table"]) == len(TABLE_EPOCHS):
        done = {"ratios": path["table"][-1]["ratios"]}
    return {"protocol": "paper", **path, "methods": {TABLE: done}}


def _jobs(
    digits: Digits, settings: Settings, hashes: Mapping[str, str]
) -> Iterator[tuple[str, Job]]:
    """One job a pair, seed and protocol, and one a pair for what needs no seed."""
    used = sorted({digit for pair in settings.pairs for digit in pair})
    zeros = {digit: np.zeros(int((digits.labels == digit).sum()), np.int64) for digit in used}
    alone = {digit: Task.of(digits.only(digit), zeros[digit]) for digit in used}
    rest = {
        (digit, part): Task.of(*digits.against_rest(digit, part))
        for digit in used
        for part in (PRIMARY, DEFENDER)
    }
    own = {digit: digits.against_rest(digit, ATTACKER) for digit in used}
    test = {digit: digits.test_against_rest(digit) for digit in used}
    # How many runs, not what a run is.
    extent = ("pairs", "seeds", "binary_seeds", "plain_seeds", "table_seeds")
    same = {k: v for k, v in dataclasses.asdict(settings).items() if k not in extent}
    kinds = [("paper", settings.seeds), ("binary", settings.binary_seeds)]
    for seed in (None, *range(max(settings.seeds, settings.binary_seeds))):  # all pairs, then again
        for pair, (protocol, seeds) in itertools.product(settings.pairs, kinds):
            if seed is not None and seed >= seeds:
                continue
            p, h = pair
            both, attacker = (alone[p], alone[h]), None
            if protocol == "binary":
                both, attacker = (rest[p, PRIMARY], rest[h, DEFENDER]), (own[h], test[h])
            names = CLOSED if seed is None else SEEDED
            job = (protocol, pair, seed, names, settings, both, attacker)
            key = key_of(__version__, NAME, protocol, pair, seed, same, hashes)
            kind = f"{protocol}, closed form" if seed is None else protocol
            yield key, Job(_one, job, f"{kind}: {p} against {h}")
    for pair in settings.pairs:
        both, name = (alone[pair[0]], alone[pair[1]]), "{} against {}".format(*pair)
        for seed in range(settings.table_seeds):
            key = key_of(__version__, NAME, "table", pair, seed, TABLE_STEP, TABLE_EPOCHS, hashes)
            yield key, Job(_table, (pair, seed, both), f"30 epochs: {name}")
        for seed in range(settings.plain_seeds):
            key = key_of(__version__, NAME, PLAIN, pair, seed, settings.epochs, hashes)
            plain = ("paper", pair, seed, PLAIN, settings, both, None)
            yield key, Job(_one, plain, f"Opt κ: {name}")


def _one(
    protocol: str,
    pair: tuple[int, int],
    seed: int | None,
    names: Sequence[str],
    settings: Settings,
    both: tuple[Task, Task],
    attacker: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None,
) -> dict[str, Any]:
    """One pair with one seed, or (seed None) its ceiling and the methods without one."""
    start = time.perf_counter()
    joint = JointRange((both[0].gram, both[1].gram))
    measured = Pair.of(*joint.moments())
    samples = None
    if attacker is not None:
        samples = subset(joint.samples(*attacker), settings.attack_rows, seed or 0)
    done: dict[str, Any] = {
        "protocol": protocol, "pair": list(pair), "seed": seed, "methods": {}
    }  # fmt: skip
    if seed is None:
        done["figures"] = measured.figures()
        if samples is not None:
            done["methods"][ORIGINAL] = {"attacks": attack(None, samples, settings.budget, 0)}
    setting = _setting(joint, measured, both, settings.epochs, seed or 0)
    for name in names:
        done["methods"][name] = _method(name, setting, measured, samples, settings, seed or 0)
    return {**done, "seconds": time.perf_counter() - start}


def _table(pair: tuple[int, int], seed: int, both: tuple[Task, Task]) -> dict[str, Any]:
    """Algorithm 1 with the table's step size, all the way to its 30 epochs; both κ on the way."""
    start = time.perf_counter()
    joint = JointRange((both[0].gram, both[1].gram))
    measured = Pair.of(*joint.moments())
    setting = _setting(joint, measured, both, 1, seed)
    chosen = dataclasses.replace(setting.loop, step=TABLE_STEP)
    setting = dataclasses.replace(setting, loop=chosen, epochs=TABLE_EPOCHS)
    path: list[dict[str, Any]] = []
    for epochs, theta in ROWS["algorithm_1"].find(setting, seed):
        if isinstance(theta, NumericalError):
            break
        path.append({"epochs": epochs, "ratios": measured.ratios(theta)})
    return {"pair": list(pair), "seed": seed, "table": path, "seconds": time.perf_counter() - start}


def _setting(
    joint: JointRange, measured: Pair, both: tuple[Task, Task], epochs: int, seed: int
) -> Setting:
    """Rows of both tasks paired by the seed, as the released code draws them."""
    count = min(len(task.images) for task in both)
    rng = np.random.default_rng(seed)
    rows = [np.sort(rng.choice(len(task.images), count, replace=False)) for task in both]
    x_p, x_h = (joint.coordinates(t.images[r]).float() for t, r in zip(both, rows, strict=True))
    y_p = torch.from_numpy(both[0].labels[rows[0]]).float()
    problem = LinearProblem(
        torch.eye(joint.basis.shape[1], dtype=torch.float64),
        measured.primary.gram,
        measured.harmful.gram,
        (tasks.Task((x_p, y_p.long())), tasks.Task((x_h, torch.zeros(count, dtype=torch.long)))),
    )
    return Setting(problem, (x_p, y_p), x_h, LOOP, (epochs,), torch.float32)


def _method(
    name: str,
    setting: Setting,
    measured: Pair,
    samples: Samples | None,
    settings: Settings,
    seed: int,
) -> dict[str, Any]:
    """Both κ of what a method finds, and what attackers read; or why it found nothing."""
    try:
        ((_, theta),) = ROWS[name].find(setting, seed)
        if isinstance(theta, NumericalError):
            raise theta
        done: dict[str, Any] = {"ratios": measured.ratios(theta)}
        if samples is not None:
            done["attacks"] = attack(theta, samples, settings.budget, seed)
    except (InputError, NumericalError) as error:  # constant labels leave nothing to erase
        return {"failed": str(error)}
    return done
