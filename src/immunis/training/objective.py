"""What an objective is given at each step, and what it returns: named terms of a loss.

An objective is a few functions of a ``View``, the model's answers to one batch of each task.
Weights, balancing, accumulation, clipping and the optimizer are the training loop's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from immunis.core.settings import require

Terms = dict[str, Tensor]
SUPERVISED = "supervised"


@dataclass(frozen=True)
class View:
    """The model's answers to one batch of the primary and one of the harmful task.

    Attributes:
        logits: answers to the primary batch (n_P, C).
        labels: class positions, or targets, of the primary batch.
        primary: pooled features of the primary batch by layer; ``""`` is where the head reads.
        harmful: pooled features of the harmful batch by layer.
        targets: harmful labels as a float64 matrix (n_H, C_H), one-hot for classes
            (mixed where the rows are), beside what the original says of them if the objective asks.
        teacher: the original model's answers to the primary batch, and its features of it, if
            the objective asks.
        head: a harmful head that follows the features, if the objective asks.
        smoothing: label smoothing of the primary loss.
        classify: whether harmful labels are classes.
    """

    logits: Tensor
    labels: Tensor
    primary: Mapping[str, Tensor]
    harmful: Mapping[str, Tensor]
    targets: Tensor
    teacher: tuple[Tensor, Tensor] | None = None
    head: nn.Linear | None = None
    smoothing: float = 0.0
    classify: bool = True

    @property
    def supervised(self) -> Tensor:
        """The primary loss: cross-entropy with label smoothing, or mean squared error."""
        if self.labels.is_floating_point():
            return functional.mse_loss(self.logits, self.labels.reshape(self.logits.shape).float())
        return functional.cross_entropy(
            self.logits.float(), self.labels, label_smoothing=self.smoothing
        )

    @property
    def distillation(self) -> Tensor:
        """``KL(teacher ‖ model)`` on the primary batch; squared distance for regression."""
        assert self.teacher is not None
        if self.labels.is_floating_point():
            return functional.mse_loss(self.logits, self.teacher[0])
        return functional.kl_div(
            self.logits.float().log_softmax(1),
            self.teacher[0].float().log_softmax(1),
            reduction="batchmean",
            log_target=True,
        )

    @property
    def harmful_loss(self) -> Tensor:
        """What the harmful head still gets wrong on the harmful batch.

        It reads features brought to a mean length of one, so that its steps fit any model.
        """
        assert self.head is not None
        features = self.harmful[""].float()
        answers = self.head(features / features.detach().norm(dim=1).mean().clamp(min=1e-12))
        if not self.classify:
            return functional.mse_loss(answers, self.targets.float())
        return functional.cross_entropy(answers, self.targets.float())


@dataclass(frozen=True)
class Attacker:
    """A simulated attacker: descends on ``loss`` before ``after`` is asked for.

    Each step moves the trained parameters θ by ``rate·‖θ‖`` against the gradient. With order 1
    the gradient of ``after`` is taken at the attacked θ* and used at θ; with order 2 it is
    carried back through the attacker's steps (``v ← v − c·∇²L·v``, by central differences).
    """

    loss: Callable[[View], Tensor]
    steps: int
    rate: float
    order: Literal[1, 2] = 1


@dataclass(frozen=True)
class Objective:
    """A loss for deep networks.

    Attributes:
        terms: named terms at the parameters as they are.
        weights: factor of each term; None is balanced at the first step, so that the term
            pulls as hard as the supervised loss, times ``multiples``.
        after: terms at the parameters a simulated attacker reaches.
        attacker: who that is.
        layers: where features are wanted; ``""`` is where the head reads.
        multiples: factors on balanced weights.
        teacher: whether the original model's answers and features are wanted.
        recall: whether targets are to hold what the original's features say of them, too
            (``immunis.theory.rho.recalled``); not with ``head``, which reads classes.
        head: whether a harmful head that follows the features is wanted.
        needs: rows that a step must exceed for its Grams, by task, beyond one for each harmful
            feature.
        judge: what early stopping asks of the harmful task: a high κ against the primary
            one (``"rir"``), or little that a probe can read (``"probe"``).
    """

    terms: Callable[[View], Terms]
    weights: Mapping[str, float | None] = field(default_factory=dict)
    after: Callable[[View], Terms] = lambda view: {}
    attacker: Attacker | None = None
    layers: Sequence[str] = ("",)
    multiples: Mapping[str, float] = field(default_factory=dict)
    teacher: bool = False
    recall: bool = False
    head: bool = False
    needs: Mapping[str, int] = field(default_factory=dict)
    judge: Literal["rir", "probe"] = "rir"

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        require(not (self.recall and self.head), "recall and head exclude each other")


@dataclass(frozen=True)
class Balanced:
    """Settings of an objective with the supervised loss and one regularizer.

    Attributes:
        weight: factor of the regularizer; left out, it balances gradient norms at the start.
        multiple: factor on a balanced weight.
    """

    weight: float | None = None
    multiple: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(
            self.weight is None or 0 <= self.weight < math.inf, f"weight={self.weight}: need >= 0"
        )
        require(0 <= self.multiple < math.inf, f"multiple={self.multiple}: need >= 0")


def supervised_only() -> Objective:
    """The primary loss alone: ordinary training."""
    return Objective(lambda view: {SUPERVISED: view.supervised})
