"""One training run, set up on its devices: data, model and optimizer, a step, a measurement."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.distributed import rank, summed, world
from immunis.core.errors import InputError, RankWarning, SettingsError
from immunis.data.augment import augmented, mixed
from immunis.data.loader import Rows, Stream, held_out
from immunis.data.task import Task, target_matrix
from immunis.models.cut import Cut
from immunis.models.teacher import ROWS, Teacher, WithFeatures
from immunis.training.hardware import Hardware
from immunis.training.heldout import HeldOut
from immunis.training.objective import Objective
from immunis.training.settings import Role, Training
from immunis.training.setup import check_head, groups_of, optimizer_of, set_mode, trainable
from immunis.training.step import Batch, Engine

RECALLED = 3  # harmful rows for each feature that recall wants at the least


class Run:
    """A copy of a model, an objective and its tasks, ready to step.

    Arguments are those of ``immunis.training.loop.fit``.

    Attributes:
        fabric: Lightning Fabric, started.
        inner: the model with its taps, wrapped or sharded as the hardware asks.
        tapped: the same before it was wrapped; to be closed at the end.
        optimizer: the optimizer as Fabric set it up.
        engine: gradients, and the weight of each term.
        head: the harmful head that some objectives train along; None for the others.
        tasks: the primary task and, where there is one, the harmful.
        steps: number of steps asked for.
        notes: what a reader of the record should know.
    """

    def __init__(
        self,
        cut: Cut,
        objective: Objective,
        primary: Task,
        harmful: Task | None,
        training: Training,
        hardware: Hardware,
        seed: int,
    ) -> None:
        check_head(cut, primary)
        self.training, self.seed, hardware = training, seed, hardware.as_launched()
        self.tasks = [task for task in (primary, harmful) if task is not None]
        self.fabric = hardware.fabric()
        start = cut.copy()
        chosen = trainable(start, training)
        self.tapped = WithFeatures(start, objective.layers)
        set_mode(start.model, training, pretraining=harmful is None)
        if self.fabric.device.type == "cuda":
            start.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if hardware.compile:
            start.model.compile()
        self.notes = _check(primary, harmful, training, {"harmful": cut.width, **objective.needs})
        if objective.recall and harmful is not None:
            self.notes += _check_recall(harmful, training, cut.width)
        self._open(primary, harmful)

        with warnings.catch_warnings():  # newer torch has another word for broadcast_buffers
            warnings.filterwarnings("ignore", message=".*broadcast_buffers")
            self._module = self.fabric.setup(self.tapped)
        self.inner = self._module._forward_module
        groups = groups_of(training, self._module, chosen)
        self._peaks = [float(group["lr"]) for group in groups]
        self.optimizer = self.fabric.setup_optimizers(optimizer_of(training, groups))

        self.head = None
        if objective.head and harmful is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                head = nn.Linear(start.width, harmful.outputs)
            self.head = head.to(self.fabric.device).requires_grad_(False)
        wanted = objective.teacher or objective.recall
        self.engine = Engine(
            self.fabric, self._module, objective, groups[0]["params"],
            teacher=self._teacher(cut, primary, hardware) if wanted else None,
            head=self.head,
            smoothing=training.label_smoothing,
            classify=harmful is not None and harmful.kind == "classification",
            accumulate=training.accumulate, joint=training.batchnorm == "freeze",
            sharded=hardware.strategy == "fsdp",
        )  # fmt: skip

    def _open(self, primary: Task, harmful: Task | None) -> None:
        """Open both tasks' data, a share of it held out."""
        training = self.training
        options: dict[str, Any] = {
            "seed": self.seed, "workers": training.workers, "device": self.fabric.device,
        }  # fmt: skip
        trained, kept = divided(primary, "primary", training)
        self._primary = Stream(primary, training.batch, trained, **options)
        self._harmful, others = None, None
        if harmful is not None:
            trained, others = divided(harmful, "harmful", training)
            self._harmful = Stream(harmful, training.harmful_batch, trained, **options)
        self._held = HeldOut(self._primary, self._harmful, (kept, others))
        self.steps = training.length(
            self._primary.epoch, self._harmful.epoch if self._harmful else 0
        )

    def _teacher(self, cut: Cut, primary: Task, hardware: Hardware) -> Teacher:
        """The original, which shares this run's forward passes where they are whole and plain."""
        teacher, model = Teacher(cut, self.fabric), self.tapped.model
        plain = not (hardware.compile or hardware.strategy == "fsdp" or model.training)
        if plain and self.training.accumulate == 1:
            teacher.share(model, primary.train.first(ROWS))
        return teacher

    def batches(self, begin: int, end: int) -> Iterator[tuple[int, Batch, Batch | None]]:
        """Number and batches of each step from ``begin`` to before ``end``."""
        pairs = zip(
            self._primary.batches(begin, end),
            self._harmful.batches(begin, end) if self._harmful else itertools.repeat(None),
            strict=False,
        )
        for step, (batch, other) in enumerate(pairs, begin):
            yield step, batch, other

    def gradients(self, step: int, batch: Batch, other: Batch | None) -> dict[str, float]:
        """Leave a step's clipped gradient in place.

        All randomness of the step is a function of its number (with several processes, of theirs
        too where images are augmented or rows mixed). Returns the value of each term,
        the gradient's norm before clipping and the learning rate.
        """
        torch.manual_seed(1_000_003 * self.seed + step)
        generator = torch.Generator(self.fabric.device)
        generator.manual_seed((1_000_003 * self.seed + step) * world() + rank())
        if self.training.augment:
            batch = augmented(batch[0], generator), batch[1]
        if other is not None:
            harmful = self.tasks[1]
            inputs = other[0]
            targets = target_matrix(other[1], harmful.kind, harmful.outputs)
            if self.training.augment:
                inputs = augmented(inputs, generator)
            other = mixed(inputs, targets, generator) if self.training.mix else (inputs, targets)
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * self.training.factor(step, self.steps)
        values = self.engine.gradients(batch, other)
        norm = self.fabric.clip_gradients(
            self._module, self.optimizer, max_norm=self.training.clip or math.inf,
            error_if_nonfinite=False,
        )  # fmt: skip
        rate = self.optimizer.param_groups[0]["lr"]
        return values | {"gradient": float(norm), "rate": rate}

    def unsound(self, values: dict[str, float]) -> list[str]:
        """Which of a step's values are not finite, and should be."""
        skipped = ("gradient",) if self.engine.scaler else ()  # it skips a step that overflows
        return [k for k, v in values.items() if k not in skipped and not math.isfinite(v)]

    def measure(self, step: int) -> dict[str, Any]:
        """Figures on held-out rows, in evaluation mode and full precision; the first process's."""
        self.agree()
        mode = [m for m in self._module.modules() if m.training]
        self._module.eval()

        def read(inputs: Tensor) -> tuple[Tensor, Tensor]:
            answers, features = self.inner(inputs)
            return answers, features[""]

        figures = self.fabric.broadcast({"step": step, **self._held.measure(read)})
        for m in mode:
            m.training = True
        return figures

    def agree(self) -> None:
        """Average running statistics over processes, so that all of them hold one model."""
        if world() > 1:
            for buffer in self._module.buffers():
                if buffer.is_floating_point():
                    buffer.copy_(summed(buffer) / world())


def divided(task: Task, role: Role, training: Training) -> tuple[Rows, Rows]:
    """Rows of a task to train on, and those held out."""
    count = len(task.train.dataset()[0])  # type: ignore[arg-type]
    if count < 20:
        raise InputError(
            f"{task.name}: {count} training samples; at least 20 are needed, of which a share is "
            "held out."
        )
    name, share = training.share_held_out(role)
    return held_out(count, share, f"{task.name}: {name}")


def _check_recall(harmful: Task, training: Training, width: int) -> list[str]:
    """Warn where the original's features are asked what labels of too few rows are."""
    rows = min(training.harmful_batch, len(divided(harmful, "harmful", training)[0]))
    if rows >= RECALLED * width:
        return []
    note = (
        f"recall: {rows} harmful samples a step for {width} features; of fewer than {RECALLED} for "
        "each a probe says little but the labels again. Raise harmful_batch, or give more of them."
    )
    warnings.warn(note, RankWarning, stacklevel=4)
    return [note]


def _check(
    primary: Task, harmful: Task | None, training: Training, needs: Mapping[str, int]
) -> list[str]:
    """Warn of a Gram with too few samples; return what the record should say."""
    if training.mix and (harmful is None or not harmful.train.first(1).is_floating_point()):
        came = "there is none" if harmful is None else f"{harmful.name} holds whole numbers"
        raise SettingsError(f"mix averages inputs of the harmful task, and {came}: leave it out.")
    if harmful is None:
        return []
    notes = []
    both: tuple[tuple[Role, Task, str], ...] = (
        ("primary", primary, "batch"),
        ("harmful", harmful, "harmful_batch"),
    )
    for role, task, setting in both:
        rows, least = len(divided(task, role, training)[0]), needs.get(role, 0)
        size = min(getattr(training, setting), rows)
        if size > least:
            continue
        fault = "the Gram is rank-deficient"
        if role == "harmful":
            fault += " and a probe explains any labels"
        remedy = f"Raise {setting} (and accumulate) above {least}"
        if rows <= least:
            remedy = f"Give more of them: {rows} are trained on"
        notes.append(f"{size} {role} samples a step in {least} dimensions: {fault}. {remedy}.")
        warnings.warn(notes[-1], RankWarning, stacklevel=4)
    return notes
