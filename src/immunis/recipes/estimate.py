"""How long a recipe will take, and how much memory, from a short pilot of the real thing.

Expect the truth within a factor of two or three: early stopping, results kept by an earlier run
and busy machines are not foreseen. Nothing is written.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch

from immunis.attacks import ATTACKS, select
from immunis.attacks.contract import Arena, Attack, NotApplicableError
from immunis.attacks.search import search, space_of
from immunis.audits.audit import TRANSFER, Effort
from immunis.audits.feature_cache import Reader, samples_of
from immunis.core.errors import ImmunisError
from immunis.core.jobs import Job, sweep
from immunis.core.progress import Progress, silent
from immunis.data.sources import Tasks
from immunis.recipes.pipeline import Table, configured, defended, original, tables_of
from immunis.recipes.recipe import Recipe
from immunis.report.format import Table as Printed
from immunis.training.hardware import Hardware, device_of
from immunis.training.settings import training_of

LONG, SHORT = 1.0, 0.2  # seconds of a training pilot, and those that noise decides
FEW = (4, 12)  # steps of the two pilots of whatever reports no progress
PEAK = 1 if sys.platform == "darwin" else 1024  # bytes in a unit of ``ru_maxrss``


@dataclass
class Estimate:
    """Seconds by part, all seeds and settings included; peak bytes; parts that failed, and why."""

    parts: dict[str, float]
    notes: list[str] = field(default_factory=list)
    memory: int = field(default_factory=lambda: PEAK * getrusage(RUSAGE_SELF).ru_maxrss)
    device_memory: int = field(default_factory=torch.cuda.max_memory_allocated)

    def table(self) -> Printed:
        """Return one row a part, longest first."""
        rows = sorted(self.parts.items(), key=lambda item: -item[1])
        return Printed("estimate", ["part", "seconds"], [[n, f"{s:.1f}"] for n, s in rows])

    def sentence(self) -> str:
        """Return the whole in words."""
        memory = f"{self.memory / 2**30:.1f} GiB of memory for each process"
        if self.device_memory:
            memory += f", {self.device_memory / 2**30:.1f} GiB on the accelerator"
        return " ".join([*self.notes, f"about {duration(sum(self.parts.values()))}; {memory}."])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "seconds": sum(self.parts.values())}


def duration(seconds: float) -> str:
    """Return seconds in the unit a person would use.

    >>> duration(42), duration(700), duration(9000)
    ('42 seconds', '12 minutes', '2.5 hours')
    """
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def estimate_immunize(recipe: Recipe, tasks: Tasks, hardware: Hardware | None = None) -> Estimate:
    """Estimate pre-training, and defending the model by the recipe's method."""
    table = {recipe.method["name"]: recipe.method}
    return Estimate(_training(recipe, table, tasks, hardware, seeds=1))


def estimate_audit(
    recipe: Recipe,
    tasks: Tasks,
    attacks: str | Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    workers: int = 1,
    hardware: Hardware | None = None,
) -> Estimate:
    """Estimate training the models of a recipe, and every attack on each of them."""
    chosen, preset = select(recipe.attacks if attacks is None else attacks)
    own = {k: v for k, v in recipe.audit.items() if k not in ("methods", "attacks")}
    effort, tables = Effort(**own), tables_of(recipe, methods)
    parts, notes = _training(recipe, tables, tasks, hardware, effort.seeds), []
    runs = effort.seeds * (len(tables) + 2)  # the original and the untrained control too
    counts = Counter({attack.name: runs for attack in chosen})
    counts["finetune_all"] += effort.seeds  # from scratch
    counts.update({name: len(tasks.transfer) * runs for name in TRANSFER if tasks.transfer})
    samples, device = samples_of(tasks.attacker), device_of((hardware or Hardware()).device)
    cut = recipe.cut(recipe.extractor(tasks.primary), tasks.primary).on(device)
    data = samples.kind, samples.outputs, samples.train, samples.test
    harmless = samples if tasks.transfer else None
    budget = effort.budget or preset
    arena = Arena(cut, *data, harmless=harmless, budget=budget, device=device)
    reader = Reader(torch.from_numpy(samples.train.inputs[:2]))
    for name, count in counts.items():
        layers = ATTACKS[name].layers(cut)
        try:
            cache = {layer: reader.read("", cut, samples, layer) for layer in layers}
            once = _attack(ATTACKS[name], replace(arena, cache=cache), effort)
            parts[name] = once * count / workers
        except NotApplicableError:
            continue
        except (ImmunisError, RuntimeError, ValueError) as error:
            notes.append(f"{name} could not be timed: {error}")
    return Estimate(parts, notes)


def estimate_jobs(jobs: Mapping[str, Job], workers: int = 1) -> Estimate:
    """Estimate a sweep from one job of each kind."""
    counts = Counter(job.kind for job in jobs.values())
    firsts = {job.kind: job for job in reversed(list(jobs.values()))}
    once = {kind: _timed(sweep, {"pilot": job}) for kind, job in firsts.items()}
    return Estimate({kind: counts[kind] / workers * seconds for kind, seconds in once.items()})


def _timed(call: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds of a call, its warnings unheard."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(*arguments)
    return time.perf_counter() - began


def _extrapolated(timed: Callable[[int], float], steps: int) -> float:
    """Return the seconds of many steps, ``a + c·steps``, from two short runs."""
    few, more = (min(count, steps) for count in FEW)
    first = timed(few)
    if few == steps:
        return first
    second = timed(more)
    if first < SHORT:
        first = timed(few)  # the one before warmed up
    while second < SHORT and more < steps:
        more = min(4 * more, steps)
        second = timed(more)
    return first + max(0.0, second - first) * (steps - few) / (more - few)


def _attack(attack: Attack, arena: Arena, effort: Effort) -> float:
    """Return the seconds of one search.

    An attack that reads features tries its whole grid. Any other trains the network with its first
    setting alone; the others are taken to cost the same.
    """
    grid = space_of(attack, arena, effort.space)
    settings = effort.trials if effort.trials and grid else math.prod(map(len, grid.values()))

    def timed(budget: int) -> float:
        short = replace(arena, budget=budget)
        only = space_of(attack, short, effort.space)
        if not arena.cache:
            only = {name: values[:1] for name, values in only.items()}
        return _timed(search, attack, short, None, only) / math.prod(map(len, only.values()))

    return settings * _extrapolated(timed, arena.budget)


def _training(
    recipe: Recipe, tables: Mapping[str, Table], tasks: Tasks, hardware: Hardware | None, seeds: int
) -> dict[str, float]:
    """Return the seconds of pre-training and of every defence, trained or solved."""
    parts, model = {}, recipe.extractor(tasks.primary)

    def defend(table: Table, hardware: Hardware | None, progress: Progress = silent) -> None:
        defended(recipe, table, model, tasks, hardware=hardware, progress=progress)

    def solve(table: Table, steps: int, few: int) -> float:
        return _timed(defend, {**table, "steps": few} if steps > 1 else table, None)

    if recipe.pretrain is not None:
        count = training_of(recipe.pretrain).evaluate
        parts["pre-training"] = _pilot(lambda p: original(recipe, tasks, hardware, None, p), count)
    for label, table in tables.items():
        if (training := recipe.training_for(table)) is not None:
            count = training_of(training).evaluate
            parts[label] = seeds * _pilot(partial(defend, table, hardware), count)
        else:
            steps = getattr(configured(table), "steps", 1)
            parts[label] = _extrapolated(partial(solve, table, steps), steps)
    return parts


class _EnoughError(Exception):
    pass


def _pilot(run: Callable[[Progress], Any], evaluations: int) -> float:
    """Return the seconds of a whole run from its beginning; stop it once it has run long enough.

    What happens before the first step (an evaluation among it) is counted for each evaluation.
    """
    marks: list[tuple[float, float]] = []
    began = time.perf_counter()

    def watch(what: str, share: float) -> None:
        marks.append((time.perf_counter(), share))
        if len(marks) > 3 and marks[-1][0] - marks[0][0] > LONG and marks[1][1] < share < 1:
            raise _EnoughError

    try:
        return _timed(run, watch)
    except _EnoughError:
        (start, done), (end, share) = marks[1], marks[-1]  # the first step warms up
        rest = (end - start) / (share - done) * (1 - share)
        return end - began + rest + evaluations * (marks[0][0] - began)
