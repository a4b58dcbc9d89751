"""How long a recipe will take and how much memory, from a short pilot of the real thing.

The recipe's network is trained for a few steps, and each attack is run with two small budgets,
which tell its fixed cost from that of a step; what is measured is multiplied out. Nothing is
written. Expect the truth within a factor of two or three: early stopping, results kept by an
earlier run and busy machines are not foreseen.
"""

from __future__ import annotations

import dataclasses
import math
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from immunis.attacks import ATTACKS, select
from immunis.attacks.contract import Arena, Attack, NotApplicableError, Samples
from immunis.attacks.search import narrowed, search
from immunis.audits.audit import TRANSFER
from immunis.audits.feature_cache import Reader, samples_of
from immunis.core.errors import ImmunisError
from immunis.core.hashing import key_of
from immunis.core.jobs import Job, sweep
from immunis.data.loader import Stream
from immunis.data.sources import Tasks
from immunis.data.task import Task
from immunis.methods import get_method
from immunis.models.cut import Cut
from immunis.models.find_head import cut
from immunis.recipes import Recipe
from immunis.recipes.pipeline import defended, tables_of
from immunis.report.format import Table
from immunis.training.hardware import Hardware, device_of
from immunis.training.loop import fit
from immunis.training.objective import Objective, supervised_only
from immunis.training.settings import Role, Training, training_of
from immunis.training.setup import divided

STEPS = 6  # of a training pilot; the first half warms up
BUDGETS = (4, 12)  # steps of the two pilots of an attack
LONG = 0.2  # seconds that are told from noise


@dataclass
class Estimate:
    """Parts of the work with their seconds, peak memory so far, and what could not be timed.

    Attributes:
        parts: seconds by part, all seeds and settings included, over the given workers.
        memory: peak bytes of this process during the pilot.
        device_memory: peak bytes on the accelerator.
        notes: parts that could not be timed, and why.
    """

    parts: dict[str, float] = field(default_factory=dict)
    memory: int = 0
    device_memory: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds of the whole."""
        return sum(self.parts.values())

    def table(self) -> Table:
        """One row a part, longest first."""
        rows = sorted(self.parts.items(), key=lambda item: -item[1])
        return Table("estimate", ["part", "seconds"], [[n, f"{s:.1f}"] for n, s in rows])

    def sentence(self) -> str:
        """The whole in words."""
        memory = f"{self.memory / 2**30:.1f} GiB of memory for each process"
        if self.device_memory:
            memory += f", {self.device_memory / 2**30:.1f} GiB on the accelerator"
        return " ".join([*self.notes, f"about {duration(self.seconds)}; {memory}."])

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**dataclasses.asdict(self), "seconds": self.seconds}

    def with_memory(self) -> Estimate:
        """Read the peaks of memory."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.memory = peak * (1 if sys.platform == "darwin" else 1024)  # kilobytes elsewhere
        self.device_memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        return self


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use.

    >>> duration(42), duration(700), duration(9000)
    ('42 seconds', '12 minutes', '2.5 hours')
    """
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def estimate_immunize(recipe: Recipe, tasks: Tasks, hardware: Hardware | None = None) -> Estimate:
    """Time and memory of a recipe's pre-training, and of defending its model by its method."""
    found, model = Estimate(), recipe.extractor(tasks.primary)
    _training(found, recipe, {recipe.method["name"]: recipe.method}, model, tasks, hardware, 1)
    return found.with_memory()


def estimate_audit(
    recipe: Recipe,
    tasks: Tasks,
    attacks: str | Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    workers: int = 1,
    hardware: Hardware | None = None,
) -> Estimate:
    """Time and memory of training the models of a recipe and of every attack on each of them."""
    found, model = Estimate(), recipe.extractor(tasks.primary)
    tables, seeds = tables_of(recipe, methods), recipe.audit.get("seeds", 3)
    _training(found, recipe, tables, model, tasks, hardware, seeds)
    chosen, preset = select(recipe.audit.get("attacks", "standard") if attacks is None else attacks)
    runs = seeds * (len(tables) + 2)  # the original and the untrained control too
    counts = {attack.name: runs for attack in chosen}
    counts["finetune_all"] = counts.get("finetune_all", 0) + seeds  # from scratch
    for name in TRANSFER if tasks.transfer else ():
        counts[name] = counts.get(name, 0) + len(tasks.transfer) * runs
    samples = samples_of(tasks.attacker)
    example = torch.from_numpy(samples.train.inputs[:2])
    device = device_of((hardware or Hardware()).device)
    whole = cut(model, example, tasks.primary.outputs, recipe.head).on(device)
    reader = Reader(example)
    for name, count in counts.items():
        arena = Arena(
            whole, samples.kind, samples.outputs, samples.train, samples.test,
            harmless=samples if tasks.transfer else None, device=device,
            budget=recipe.audit.get("budget") or preset,
        )  # fmt: skip
        try:
            limits = recipe.audit.get("space", {}), recipe.audit.get("trials")
            once = _attack(ATTACKS[name], arena, reader, samples, *limits)
        except NotApplicableError:
            continue
        except (ImmunisError, RuntimeError, ValueError) as error:
            found.notes.append(f"{name} could not be timed: {error}")
            continue
        found.parts[name] = once * count / workers
    return found.with_memory()


def estimate_jobs(jobs: Mapping[str, Job], workers: int = 1) -> Estimate:
    """Time and memory of a sweep, from one job of each kind."""
    found = Estimate()
    counts = Counter(job.kind for job in jobs.values())
    firsts = {job.kind: job for job in reversed(list(jobs.values()))}
    for kind, job in firsts.items():
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sweep({key_of(kind): job})
        found.parts[kind] = (time.perf_counter() - began) * counts[kind] / workers
    return found.with_memory()


def _attack(
    attack: Attack,
    arena: Arena,
    reader: Reader,
    samples: Samples,
    space: Mapping[str, Sequence[Any]],
    trials: int | None,
) -> float:
    """Seconds of one search: ``a + c·budget`` a setting, from the time of two small budgets.

    An attack that reads features tries the grid of the small budget, any other its first setting
    alone, since each of them trains the network; what the real search tries beyond that is
    taken to cost the same.
    """
    layers = attack.layers(arena.cut)
    cache = {layer: reader.read("the model", arena.cut, samples, layer) for layer in layers}
    arena = dataclasses.replace(arena, cache=cache)
    kept = narrowed(attack, arena, space)
    wanted = trials if trials and kept else math.prod(map(len, kept.values()))
    times, tried = [], 1
    for steps in BUDGETS:
        short = dataclasses.replace(arena, budget=steps)
        only = narrowed(attack, short, space)
        if not layers:
            only = {name: values[:1] for name, values in only.items()}
        tried = math.prod(map(len, only.values()))
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            search(attack, short, only=only)
        times.append(time.perf_counter() - began)
    slope = max(0.0, times[1] - times[0]) / (BUDGETS[1] - BUDGETS[0])
    return wanted / tried * (times[0] + slope * max(0, arena.budget - BUDGETS[0]))


def _training(
    found: Estimate,
    recipe: Recipe,
    tables: Mapping[str, Mapping[str, Any]],
    model: nn.Module | Tensor,
    tasks: Tasks,
    hardware: Hardware | None,
    seeds: int,
) -> None:
    """Add pre-training and every defence: trained for a few steps, or solved."""
    example = tasks.primary.train.first(2)
    if recipe.pretrain is not None:
        assert isinstance(model, nn.Module)
        how = training_of(recipe.pretrain)
        whole = cut(model, example, tasks.primary.outputs, recipe.head)
        found.parts["pre-training"] = _steps(whole, supervised_only(), tasks, how, hardware, False)
    for label, table in tables.items():
        own, method = recipe.training_for(table), get_method(table["name"])
        settings = {k: v for k, v in table.items() if k not in ("name", "label", "training")}
        if own is None:
            steps = getattr(method.configure(settings), "steps", 1)
            found.parts[label] = _solved(recipe, table, model, tasks, steps)
            continue
        assert isinstance(model, nn.Module)
        whole = cut(model, example, tasks.primary.outputs, recipe.head)
        assert method.objective is not None
        objective = method.objective(method.configure(settings, network=True), whole)
        once = _steps(whole, objective, tasks, training_of(own), hardware, True)
        found.parts[label] = seeds * once


def _solved(
    recipe: Recipe, table: Mapping[str, Any], model: nn.Module | Tensor, tasks: Tasks, steps: int
) -> float:
    """Seconds of a linear method: run as it is, or ``a + c·steps`` where it takes many.

    The number of steps is raised until they take long enough to be timed.
    """

    def timed(count: int) -> float:
        began = time.perf_counter()
        defended(recipe, {**table, "steps": count} if steps > 1 else table, model, tasks)
        return time.perf_counter() - began

    count = few = min(BUDGETS[0], steps)
    fixed = timed(few)
    if steps > few:
        fixed = timed(few)  # the first run warmed up
    spent = 0.0
    while spent < LONG and count < steps:
        count = min(4 * count, steps)
        spent = max(0.0, timed(count) - fixed)
    return fixed + spent * (steps - few) / max(1, count - few)


def _steps(
    whole: Cut,
    objective: Objective,
    tasks: Tasks,
    training: Training,
    hardware: Hardware | None,
    paired: bool,
) -> float:
    """Seconds of a whole training run, from the last steps of a short one and its evaluations."""
    marks: list[float] = []
    short = dataclasses.replace(training, steps=STEPS, epochs=None, harmful_epochs=None, evaluate=1)
    harmful = tasks.harmful if paired else None
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(
            whole, objective, tasks.primary, harmful, short, hardware,
            progress=lambda what, share: marks.append(time.perf_counter()),
        )  # fmt: skip
    ended = time.perf_counter()
    warm = len(marks) // 2
    step = (marks[-1] - marks[warm - 1]) / (len(marks) - warm)
    evaluation = ended - marks[-1]
    epochs = {"primary": 0, "harmful": 0}
    roles: tuple[tuple[Role, Task | None, int], ...] = (
        ("primary", tasks.primary, training.batch),
        ("harmful", harmful, training.harmful_batch),
    )
    for role, task, size in roles:
        if task is not None:
            epochs[role] = Stream(task, size, divided(task, role, training)[0]).epoch
    steps = training.length(**epochs)
    return (marks[0] - began) + steps * step + training.evaluate * evaluation
