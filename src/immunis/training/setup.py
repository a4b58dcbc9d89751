"""A training run made ready on its devices: data, model, optimizer, teacher."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from immunis.core.distributed import world
from immunis.core.errors import InputError, RankWarning, SettingsError
from immunis.core.state import quiet, seeded
from immunis.data.feed import run_model
from immunis.data.loader import Rows, Stream, held_out
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.models.positions import logits_of
from immunis.models.with_features import WithFeatures
from immunis.models.zoo import untrained
from immunis.training.objective import Objective
from immunis.training.settings import Hardware, Training

BATCHNORM = nn.modules.batchnorm._BatchNorm
FRESH = {"noised": 0.6, "fresh": 1.0}  # share of fresh parameters in a start
Batch = tuple[Tensor, Tensor]
Role = Literal["primary", "harmful"]


@dataclass
class TrainingRun:
    """The state of a training run."""

    fabric: Any
    student: Any  # the ``WithFeatures`` model in training, set up by Fabric
    objective: Objective
    body: list[nn.Parameter]  # of the extractor, trained; a simulated attacker moves them
    training: Training = field(default_factory=Training)
    optimizer: Any = None
    streams: list[Stream] = field(default_factory=list)
    held: list[Rows] = field(default_factory=list)  # held-out rows of both tasks
    steps: int = 0
    seed: int = 0
    teacher: Callable[[Tensor], Tensor] | None = None  # the original's answers
    head: nn.Linear | None = None  # of the harmful task, trained along if the objective asks
    sharded: bool = False  # each process holds only a part of every gradient (FSDP)
    reference: Tensor | None = None  # held-out primary rows to keep; by default the start's score
    step: int = 0  # steps done
    weights: dict[str, float] = field(default_factory=dict)  # of terms; empty before step 1
    history: list[dict[str, Any]] = field(default_factory=list)  # figures of every evaluation
    best: dict[str, Any] = field(default_factory=lambda: {"step": 0, "model": None})
    notes: list[str] = field(default_factory=list)  # for a reader of the record
    begin: Callable[[], None] = lambda: None  # puts the objective's own start in place

    @property
    def least(self) -> float:
        """Return the held-out primary score that an evaluation must reach to count."""
        return float(self.history[0]["primary"] - self.training.tolerance)

    @property
    def model(self) -> nn.Module:
        """Return the student as Fabric wrapped or sharded it, without its precision."""
        return self.student._forward_module

    @property
    def scaler(self) -> Any:
        """Return the loss scaler of half precision, or None."""
        return getattr(self.fabric.strategy.precision, "scaler", None)

    @property
    def joint(self) -> bool:
        """Return True if both tasks share a forward pass."""
        return self.training.batchnorm != "update"

    @property
    def judge(self) -> str:
        """Return what decides the best evaluation: ``"rir"``, ``"probe"`` or ``"primary"``."""
        return self.objective.judge if len(self.streams) > 1 else "primary"

    def note(self, text: str, kind: type[Warning] = UserWarning) -> None:
        """Warn, and keep the warning for the record."""
        self.notes.append(text)
        warnings.warn(text, kind, stacklevel=4)

    def batches(self, start: int, stop: int) -> Iterator[tuple[int, Batch, Batch | None]]:
        """Yield number, primary and harmful batch of the steps ``start`` to ``stop − 1``."""
        primary, *harmful = (stream.batches(start, stop) for stream in self.streams)
        others = harmful[0] if harmful else itertools.repeat(None)
        for step, (batch, other) in enumerate(zip(primary, others, strict=False), start):
            yield step, batch, other


def prepare(
    cut: Cut,
    objective: Objective,
    primary: Task,
    harmful: Task | None,
    training: Training,
    hardware: Hardware,
    seed: int,
) -> TrainingRun:
    """Return a run that is ready to step; arguments are those of ``immunis.training.loop.fit``."""
    _check(cut, primary, harmful, training)
    hardware = hardware.as_launched()
    fabric = hardware.fabric()
    start = cut.copy()
    chosen = _choose_trained(start, training, pretraining=harmful is None)
    student = WithFeatures(start, objective.layers)
    if fabric.device.type == "cuda":
        start.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if hardware.compile:
        start.model.compile()

    roles: list[tuple[Role, Task, int]] = [("primary", primary, training.batch)]
    if harmful is not None:
        roles.append(("harmful", harmful, training.harmful_batch))
    rows = [divided(task, role, training) for role, task, _ in roles]
    options: dict[str, Any] = {"seed": seed, "workers": training.workers, "device": fabric.device}
    streams = [
        Stream(task, batch, trained, **options)
        for (_, task, batch), (trained, _) in zip(roles, rows, strict=True)
    ]

    with quiet(message=".*broadcast_buffers"):  # newer torch renames it
        model = fabric.setup(student)
    optimizer = _optimizer(training, model, chosen)
    body = optimizer.param_groups[0]["params"]
    run = TrainingRun(fabric, model, objective, body, training, streams=streams, seed=seed)
    run.optimizer = fabric.setup_optimizers(optimizer)
    run.held = [kept for _, kept in rows]
    run.steps = training.length(*(stream.epoch for stream in streams))
    run.sharded = hardware.strategy == "fsdp" and world() > 1
    if objective.start != "given":
        run.begin = _beginning(cut, start, objective.start, seed, run.sharded)
    if harmful is not None:
        _note_small_grams(run, cut.width)
        if objective.head:
            with seeded(seed):
                head = nn.Linear(cut.width, harmful.outputs)
            run.head = head.to(fabric.device).requires_grad_(False)
    if objective.teacher:
        run.teacher = answers_of(cut, fabric)
    return run


def answers_of(cut: Cut, fabric: Any) -> Callable[[Tensor], Tensor]:
    """Return a function from inputs to a frozen copy's answers, in Fabric's precision."""
    model = cut.copy().model.to(fabric.device).eval().requires_grad_(False)
    if fabric.device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.no_grad()
    def answers(inputs: Tensor) -> Tensor:
        with fabric.autocast():
            return logits_of(run_model(model, inputs)).float()

    return answers


def divided(task: Task, role: Role, training: Training) -> tuple[Rows, Rows]:
    """Return the rows of a task to train on and the rows to hold out."""
    count = len(task.train.dataset()[0])  # type: ignore[arg-type]
    if count < 20:
        raise InputError(f"{task.name}: {count} training samples; at least 20 are needed.")
    own = role == "harmful" and training.harmful_held_out is not None
    name = "harmful_held_out" if own else "held_out"
    return held_out(count, getattr(training, name), f"{task.name}: {name}")


def _check(cut: Cut, primary: Task, harmful: Task | None, training: Training) -> None:
    """Refuse a head of another width than the primary task, and rows that cannot be mixed."""
    layer = cut.head_layer
    if layer is not None and layer.out_features != primary.outputs:
        width = layer.out_features
        hint = f" If its labels are some of the head's, say Task(..., classes={width})."
        raise InputError(
            f"head {cut.head!r} has {width} outputs, {primary.name} has {primary.outputs}; they "
            f"must agree.{hint if width > primary.outputs else ''}"
        )
    if training.mix and (harmful is None or not harmful.train.first(1).is_floating_point()):
        came = "there is none" if harmful is None else f"{harmful.name} holds whole numbers"
        raise SettingsError(f"mix averages inputs of the harmful task, and {came}: leave it out.")


def _choose_trained(cut: Cut, training: Training, pretraining: bool) -> set[str]:
    """Freeze all parameters except the chosen ones and the head; return the chosen names.

    Dropout is used in pre-training only. BatchNorm updates if it is trained and asked to.
    """
    names = set(cut.parameters_named(training.layers))
    of_head = set() if cut.head_layer is None else set(cut.head_layer.parameters())
    for name, parameter in cut.model.named_parameters():
        parameter.requires_grad_(name in names or parameter in of_head)
    for module in cut.model.train(pretraining).modules():
        if isinstance(module, BATCHNORM):
            trained = any(p.requires_grad for p in module.parameters())
            module.train(training.batchnorm != "freeze" and trained)
    return names


def _beginning(cut: Cut, start: Cut, kind: str, seed: int, sharded: bool) -> Callable[[], None]:
    """Return a function that gives the student fresh parameters, or mixes them with the given."""
    if sharded:
        raise SettingsError(f"start={kind!r} draws whole layers, which FSDP shards: use 'given'.")
    drawn, share = untrained(cut, seed).model, FRESH[kind]

    @torch.no_grad()
    def begin() -> None:
        for mine, fresh in zip(start.model.parameters(), drawn.parameters(), strict=True):
            if mine.requires_grad:
                mine.lerp_(fresh.to(mine), share)
        if kind == "fresh":
            for buffer, drawn_buffer in zip(start.model.buffers(), drawn.buffers(), strict=True):
                buffer.copy_(drawn_buffer)

    return begin


@contextmanager
def resting(module: nn.Module) -> Iterator[None]:
    """Keep a module in evaluation mode, so that it takes no statistics."""
    awake = [part for part in module.modules() if part.training]
    try:
        for part in awake:
            part.training = False
        yield
    finally:
        for part in awake:
            part.training = True


def plain_name(name: str) -> str:
    """Return a parameter's name in the plain model, from its name in the student."""
    for wrapper in ("_forward_module.", "_fsdp_wrapped_module."):
        name = name.replace(wrapper, "")
    return name.removeprefix("module.").removeprefix("model.")


def _optimizer(training: Training, student: nn.Module, body: set[str]) -> torch.optim.Optimizer:
    """Return SGD with Nesterov momentum 0.9 or AdamW, over the extractor and then the head."""
    parts: tuple[list[Tensor], list[Tensor]] = [], []
    for name, parameter in student.named_parameters():
        if parameter.requires_grad:
            parts[plain_name(name) not in body].append(parameter)
    decays = training.weight_decay, training.head_weight_decay
    groups = [
        {"params": part, "lr": rate, "weight_decay": decay}
        for part, rate, decay in zip(parts, training.peaks, decays, strict=True)
    ]
    if training.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=training.rate, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups, lr=training.rate)


def _note_small_grams(run: TrainingRun, width: int) -> None:
    """Warn if a step has too few rows for a Gram matrix, or for what the original recalls."""
    needs = {"primary": 0, "harmful": width, **run.objective.needs}
    for role, setting, stream in zip(needs, ("batch", "harmful_batch"), run.streams, strict=False):
        size, rows, least = stream.batch, len(stream.rows), needs[role]
        if size > least:
            continue
        fault = " and a probe explains any labels" if role == "harmful" else ""
        remedy = f"Raise {setting} above {least}"
        if run.training.batchnorm == "freeze":
            remedy += f" (accumulate={math.ceil(least / size) + 1} keeps the memory of a part)"
        if rows <= least:
            remedy = f"Give more data: only {rows} are trained on"
        run.note(
            f"{size} {role} samples a step in {least} dimensions: the Gram is rank-deficient"
            f"{fault}. {remedy}.",
            RankWarning,
        )
