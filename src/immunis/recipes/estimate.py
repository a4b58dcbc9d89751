"""How long a recipe will take, and how much memory, from a short pilot of the real thing.

Expect the truth within a factor of two or three: early stopping, results kept by an earlier run
and busy machines are not foreseen. Nothing is written.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch

from immunis.attacks import ATTACKS, select
from immunis.attacks.arrays import Samples, tensor
from immunis.attacks.contract import Arena, Attack, NotApplicableError
from immunis.attacks.halving import TOTAL
from immunis.attacks.search import search, space_of
from immunis.audits.audit import TRANSFER, Effort
from immunis.audits.describe import Reader
from immunis.audits.lineup import control_draws
from immunis.audits.room import room_of
from immunis.core.disk_arrays import Shelf
from immunis.core.errors import ImmunisError
from immunis.core.jobs import Job, Progress, sweep
from immunis.core.state import quiet
from immunis.recipes.defences import Table, configured, tables_of
from immunis.recipes.pipeline import Pipeline
from immunis.report.markup import Table as Printed
from immunis.training.settings import device_of, training_of

LONG, SHORT = 1.0, 0.2  # seconds of a training pilot, and those that noise decides
FEW = (4, 12)  # steps of the two pilots of whatever reports no progress
PEAK = 1 if sys.platform == "darwin" else 1024  # bytes in a unit of ``ru_maxrss``


@dataclass
class Estimate:
    """Seconds by part, all seeds and settings included; bytes; parts that failed, and why."""

    parts: dict[str, float]
    notes: list[str] = field(default_factory=list)
    disk: int = 0  # bytes of data and features that are mapped from files
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
        if self.disk:
            memory += f", {self.disk / 2**30:.1f} GiB of temporary files mapped into it"
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


def estimate_immunize(pipeline: Pipeline) -> Estimate:
    """Estimate pre-training, and defending the model by the recipe's method."""
    method = pipeline.recipe.method
    return Estimate(_training(pipeline, {method["name"]: method}))


def estimate_audit(
    pipeline: Pipeline,
    attacks: str | Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    workers: int = 1,
) -> Estimate:
    """Estimate training the models of a recipe, and every attack on each of them."""
    recipe, tasks = pipeline.recipe, pipeline.tasks
    chosen, preset = select(recipe.attacks if attacks is None else attacks)
    effort, tables = Effort(**recipe.effort), tables_of(recipe, methods)
    parts, notes = _training(pipeline, tables, recipe.variants, recipe.originals), []
    trained = [recipe.training_for(table) is not None for table in tables.values()]
    variants = sum(recipe.variants if each else recipe.originals for each in trained)
    bare = effort.seeds * control_draws(effort.seeds)
    runs = effort.seeds * (variants + recipe.originals) + bare
    counts = Counter({attack.name: runs for attack in chosen})
    counts["finetune_all"] += bare  # from scratch
    counts.update({name: len(tasks.transfer) * runs for name in TRANSFER if tasks.transfer})
    device = device_of(pipeline.hardware.device)
    with Shelf() as shelf:
        samples = Samples.of(tasks.attacker, shelf)
        public = None if tasks.primary.test is None else Samples.of(tasks.primary, shelf)
        read, inputs = shelf.size, room_of(tasks.attacker, tasks.primary, *tasks.transfer)
        cut = recipe.cut(recipe.extractor(tasks.primary), tasks.primary).on(device)
        data = samples.kind, samples.outputs, samples.train, samples.test
        harmless = samples if tasks.transfer else None
        arena = Arena(cut, *data, harmless=harmless, primary=public, device=device)
        budget = preset.changed(effort.budget)
        reader = Reader(tensor(samples.train.inputs[:2]), shelf)
        for name, count in counts.items():
            layers = ATTACKS[name].layers(cut)
            try:
                cache = {layer: reader.read("", cut, samples, layer) for layer in layers}
                steps = budget.of(ATTACKS[name])
                once = _attack(ATTACKS[name], replace(arena, cache=cache, budget=steps), effort)
                parts[name] = once * count / workers
            except NotApplicableError:
                continue
            except (ImmunisError, RuntimeError, ValueError) as error:
                notes.append(f"{name} could not be timed: {error}")
        models = variants + recipe.originals + bare
        disk = inputs + models * (shelf.size - read)
    return Estimate(parts, notes, disk)


def estimate_jobs(jobs: Mapping[str, Job], workers: int = 1) -> Estimate:
    """Estimate a sweep from one job of each kind."""
    counts = Counter(job.kind for job in jobs.values())
    firsts = {job.kind: job for job in reversed(list(jobs.values()))}
    once = {kind: _timed(sweep, {"pilot": job}) for kind, job in firsts.items()}
    return Estimate({kind: counts[kind] / workers * seconds for kind, seconds in once.items()})


def estimate_runs(pipeline: Pipeline, runs: Mapping[str, Callable[[Progress], Any]]) -> Estimate:
    """Estimate pre-training, and each run from the first share of its work that it reports."""
    parts = _training(pipeline, {})
    return Estimate(parts | {name: _pilot(run, 0) for name, run in runs.items()})


def _timed(call: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds that a call takes; ignore its warnings."""
    began = time.perf_counter()
    with quiet():
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

    A probe tries its whole grid, and further rates. An attack that trains the network does so with
    its first setting alone; the others are taken to cost the same.
    """
    grid = space_of(attack, arena, effort.space)
    settings = effort.trials if effort.trials and grid else math.prod(map(len, grid.values()))
    if attack.fine_tunes and effort.trials is None:
        settings = min(settings, TOTAL)

    def timed(budget: int) -> float:
        short = replace(arena, budget=budget)
        space = space_of(attack, short, effort.space)
        if attack.fine_tunes:
            first = {name: values[:1] for name, values in space.items()}
            return _timed(search, attack, short, None, first)
        tries = math.prod(map(len, space.values()))
        return _timed(search, attack, short, None, effort.space) / tries

    return settings * _extrapolated(timed, arena.budget)


def _training(
    pipeline: Pipeline, tables: Mapping[str, Table], variants: int = 1, originals: int = 1
) -> dict[str, float]:
    """Return the seconds of pre-training and of every defence, trained or solved."""
    recipe, parts = pipeline.recipe, {}
    model = recipe.extractor(pipeline.tasks.primary)

    def pilot(settings: Mapping[str, Any], call: Callable[[Pipeline], Any]) -> float:
        evaluations = training_of(settings).evaluate
        return _pilot(lambda progress: call(replace(pipeline, progress=progress)), evaluations)

    def solve(table: Table, steps: int, few: int) -> float:
        return _timed(pipeline.defended, {**table, "steps": few} if steps > 1 else table, model)

    if recipe.pretrain is not None:
        parts["pre-training"] = originals * pilot(recipe.pretrain, Pipeline.original)
    for label, table in tables.items():
        if (training := recipe.training_for(table)) is not None:
            defend = partial(Pipeline.defended, table=table, model=model)
            parts[label] = variants * pilot(training, defend)
        else:
            steps = getattr(configured(table), "steps", 1)
            parts[label] = originals * _extrapolated(partial(solve, table, steps), steps)
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
