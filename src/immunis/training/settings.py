"""How a network is trained: settings, checked before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from immunis.core.settings import build, check, require, require_least

Role = Literal["primary", "harmful"]


@dataclass(frozen=True)
class Training:
    """How a network is trained.

    Attributes:
        layers: parameters to train, as module names (``"layer4"``) or patterns (``"*.bias"``);
            empty for the last stage, ``["*"]`` for all. The head is always trained.
        steps: optimizer steps.
        epochs: passes over the longer of the two tasks, in place of ``steps``.
        harmful_epochs: passes over the harmful task, which the paper's table counts, instead.
        batch: primary rows per step, over all processes together.
        harmful_batch: harmful rows per step; should exceed the number of features.
        accumulate: parts a step is run in, to save memory; the gradient is exact.
        optimizer: ``"sgd"`` with Nesterov momentum 0.9, or ``"adamw"``.
        rate: peak learning rate of the extractor.
        head_rate: of the head; as ``rate`` if left out.
        weight_decay: of the extractor.
        head_weight_decay: of the head.
        label_smoothing: of the primary loss.
        schedule: ``"cosine"`` to zero, or ``"constant"``.
        warmup: share of the steps over which the rate rises from zero.
        clip: largest gradient norm; 0 for any.
        batchnorm: ``"freeze"`` keeps running statistics and uses them; ``"update"`` takes
            batch statistics of the primary task.
        augment: zoom and flip primary and harmful images at random.
        mix: average harmful rows, and their labels, with one another at random, so that they are
            not learned by heart (``immunis.data.transforms.mixed``).
        held_out: share of both tasks' training rows kept for early stopping.
        harmful_held_out: of the harmful task's, which are often few; as ``held_out`` if left out.
        evaluate: number of evaluations over the run.
        patience: evaluations without a better one before the run stops; 0 for never.
        tolerance: held-out primary score a checkpoint may lose.
        workers: processes that decode ahead, for data that is not in memory.
    """

    layers: Sequence[str] = ()
    steps: int | None = None
    epochs: float | None = None
    harmful_epochs: float | None = None
    batch: int = 256
    harmful_batch: int = 2048
    accumulate: int = 1
    optimizer: Literal["sgd", "adamw"] = "adamw"
    rate: float = 1e-3
    head_rate: float | None = None
    weight_decay: float = 0.0
    head_weight_decay: float = 2e-5
    label_smoothing: float = 0.1
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: float = 0.05
    clip: float = 1.0
    batchnorm: Literal["freeze", "update"] = "freeze"
    augment: bool = False
    mix: bool = False
    held_out: float = 0.1
    harmful_held_out: float | None = None
    evaluate: int = 10
    patience: int = 0
    tolerance: float = 0.005
    workers: int = 0

    def __post_init__(self) -> None:
        """Check the types, the ranges and the combinations."""
        check(vars(self), get_type_hints(Training), "training")
        require_least(self, 1, "batch", "harmful_batch", "accumulate", "evaluate")
        lengths = "steps", "epochs", "harmful_epochs"
        require_least(self, 0, *lengths, "rate", "head_rate", above=True)
        require_least(self, 0, "weight_decay", "head_weight_decay", "clip", "tolerance")
        require_least(self, 0, "label_smoothing", "warmup", "patience", "workers")
        require_least(self, 0, "held_out", "harmful_held_out", above=True)
        for name in ("label_smoothing", "warmup", "held_out", "harmful_held_out"):
            value = getattr(self, name)
            require(value is None or value < 1, f"{name}={value}: expected a number below 1")
        given = [name for name in lengths if getattr(self, name) is not None]
        require(len(given) <= 1, f"{' and '.join(given)} exclude each other: give one")
        require(
            self.accumulate == 1 or self.batchnorm == "freeze",
            "accumulate runs every part twice, also for BatchNorm: use batchnorm='freeze' with it",
        )

    def share_held_out(self, role: Role) -> tuple[str, float]:
        """Return the setting that gives the held-out share of a task's rows, and its value."""
        if role == "primary" or self.harmful_held_out is None:
            return "held_out", self.held_out
        return "harmful_held_out", self.harmful_held_out

    def length(self, primary: int, harmful: int = 0) -> int:
        """Return the number of steps, from the steps in an epoch of each task (0 for no task)."""
        if self.steps is not None:
            return self.steps
        if self.harmful_epochs is not None:
            require(harmful > 0, "harmful_epochs needs a harmful task; use epochs or steps")
            return max(1, round(self.harmful_epochs * harmful))
        return max(1, round((1.0 if self.epochs is None else self.epochs) * max(primary, harmful)))

    @property
    def peaks(self) -> tuple[float, float]:
        """Return the peak learning rates of extractor and head."""
        return self.rate, self.rate if self.head_rate is None else self.head_rate

    def factor(self, step: int, steps: int) -> float:
        """Return the share of the peak learning rate at a step."""
        rise = self.warmup * steps
        if step < rise:
            return (step + 1) / (rise + 1)
        if self.schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1.0, steps - rise)))


def training_of(values: Mapping[str, Any]) -> Training:
    """Return training settings; refuse unknown keys with a suggestion."""
    return build(Training, values, "training")
