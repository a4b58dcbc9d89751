"""An objective: functions of a ``View``, the model's answers, that return named terms of a loss.

Weights, balancing, accumulation, clipping and the optimizer belong to the training loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional

from immunis.core.settings import require_least

Terms = dict[str, Tensor]
SUPERVISED = "supervised"
TEMPERATURE = 2.0  # at which the original's answers are taught


@dataclass(frozen=True)
class View:
    """The model's answers to one batch of the primary and one of the harmful task.

    Attributes:
        logits: answers to the primary batch (n_P, C).
        labels: class positions, or targets, of the primary batch.
        primary, harmful: pooled features of a batch by layer; ``""`` is the input of the head.
        targets: harmful labels as a float64 matrix (n_H, C_H), one-hot for classes.
        teacher: the original's answers to the primary batch, if asked for.
        head: the harmful head that is trained along, if asked for.
        smoothing: label smoothing of the primary loss.
        classify: True if harmful labels are classes.
    """

    logits: Tensor
    labels: Tensor
    primary: Mapping[str, Tensor]
    harmful: Mapping[str, Tensor]
    targets: Tensor
    teacher: Tensor | None = None
    head: nn.Linear | None = None
    smoothing: float = 0.0
    classify: bool = True

    @property
    def supervised(self) -> Tensor:
        """Return the primary loss: cross-entropy with label smoothing, or mean squared error."""
        if self.labels.is_floating_point():
            return functional.mse_loss(self.logits, self.labels.reshape(self.logits.shape).float())
        return functional.cross_entropy(
            self.logits.float(), self.labels, label_smoothing=self.smoothing
        )

    @property
    def distillation(self) -> Tensor:
        """Return ``KL(teacher ‖ model)`` of answers divided by a temperature of 2.

        For regression, return the squared distance of the answers.
        """
        assert self.teacher is not None
        if self.labels.is_floating_point():
            return functional.mse_loss(self.logits, self.teacher)
        return functional.kl_div(
            (self.logits.float() / TEMPERATURE).log_softmax(1),
            (self.teacher.float() / TEMPERATURE).log_softmax(1),
            reduction="batchmean",
            log_target=True,
        )

    @property
    def harmful_loss(self) -> Tensor:
        """Return the harmful head's loss on features scaled to a mean length of one."""
        assert self.head is not None
        features = self.harmful[""].float()
        answers = self.head(features / features.detach().norm(dim=1).mean().clamp(min=1e-12))
        if not self.classify:
            return functional.mse_loss(answers, self.targets.float())
        return functional.cross_entropy(answers, self.targets.float())


@dataclass(frozen=True)
class Attacker:
    """A simulated attacker, who descends on ``loss`` before ``Objective.after`` is evaluated.

    Each step moves the trained parameters θ by ``rate·‖θ‖`` against the gradient. Order 1 uses the
    gradient of ``after`` at the attacked θ* as it is; order 2 carries it back through the
    attacker's steps (``v ← v − c·∇²L·v``, by central differences).
    """

    loss: Callable[[View], Tensor]
    steps: int
    rate: float
    order: Literal[1, 2] = 1


@dataclass(frozen=True)
class Objective:
    """A loss for deep networks.

    Attributes:
        terms: named terms at the present parameters.
        weights: factor of each term; None is balanced at the first step, so that the term's
            gradient is as long as that of ``base`` with its weight, times ``multiples``.
        after: terms at the parameters that ``attacker`` reaches.
        after_primary: True if ``after`` reads the primary batch too.
        layers: where features are wanted; ``""`` is the input of the head.
        teacher: True to see the original's answers.
        start: weights to begin with: the given ones, a mix of them with fresh ones, or fresh ones.
        head: True to train a harmful head along.
        needs: rows that a step must exceed for its Grams, by task; at least one per harmful
            feature anyway.
        judge: how early stopping judges the harmful task: by RIR (``"rir"``), by what a probe
            reads (``"probe"``), or not at all (``"primary"``).
    """

    terms: Callable[[View], Terms]
    weights: Mapping[str, float | None] = field(default_factory=dict)
    after: Callable[[View], Terms] = lambda view: {}
    after_primary: bool = False
    attacker: Attacker | None = None
    layers: Sequence[str] = ("",)
    multiples: Mapping[str, float] = field(default_factory=dict)
    base: str = SUPERVISED
    teacher: bool = False
    start: Literal["given", "noised", "fresh"] = "given"
    head: bool = False
    needs: Mapping[str, int] = field(default_factory=dict)
    judge: Literal["rir", "probe", "primary"] = "rir"


@dataclass(frozen=True)
class Balanced:
    """Settings of an objective with the supervised loss and one regularizer.

    Attributes:
        weight: factor of the regularizer; None balances gradient norms at the start.
        multiple: factor on a balanced weight.
    """

    weight: float | None = None
    multiple: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        require_least(self, 0, "weight", "multiple")

    def objective(self, name: str, term: Callable[[View], Tensor], **options: Any) -> Objective:
        """Return the supervised loss and a regularizer as the objective that trains a network."""
        return Objective(
            lambda view: {SUPERVISED: view.supervised, name: term(view)},
            {name: self.weight},
            multiples={name: self.multiple},
            **options,
        )


def supervised_only() -> Objective:
    """Return ordinary training: the primary loss alone."""
    return Objective(lambda view: {SUPERVISED: view.supervised})
