"""What every linear method is given and returns, and the descent loop they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_type_hints

import torch
from torch import Tensor

from immunis.core.errors import NumericalError, SettingsError
from immunis.core.settings import check, require
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.theory.gram import Gram
from immunis.theory.regularizers import linear_hessian
from immunis.theory.spectrum import quiet_spectrum, relative_cutoff
from immunis.training.objective import Objective

Optimizer = Literal["gd", "adam"]
Report = Callable[[float], None]


@dataclass(frozen=True)
class LinearProblem:
    """A linear extractor θ₀ and the moments of the two tasks it is immunized for.

    ``scale`` is one number for both tasks, chosen so that the mean squared input is one:
    κ does not see it, and step sizes mean the same whatever the units of the data.
    """

    theta: Tensor
    primary: Gram
    harmful: Gram
    tasks: tuple[Task, Task]
    extractor: Callable[[Tensor], Tensor] | None = None
    seed: int = 0
    report: Report = lambda share: None

    @cached_property
    def scale(self) -> float:
        """Root mean square of the inputs over both tasks."""
        return math.sqrt(
            sum(float(g.matrix().diagonal().mean()) / g.samples for g in self._grams) / 2
        )

    @property
    def _grams(self) -> tuple[Gram, Gram]:
        return self.primary, self.harmful

    @cached_property
    def k_primary(self) -> Tensor:
        """Mean second moment of the scaled primary inputs: ``K_P/(n·scale²)``."""
        return self.primary.matrix() / (self.primary.samples * self.scale**2)

    @cached_property
    def k_harmful(self) -> Tensor:
        """Mean second moment of the scaled harmful inputs: ``K_H/(n·scale²)``."""
        return self.harmful.matrix() / (self.harmful.samples * self.scale**2)

    @cached_property
    def b_primary(self) -> Tensor:
        """Mean product of scaled primary inputs and targets: ``XᵀY/(n·scale)``."""
        return self.primary.cross() / (self.primary.samples * self.scale)

    @cached_property
    def b_harmful(self) -> Tensor:
        """Mean product of scaled harmful inputs and targets: ``XᵀY/(n·scale)``."""
        return self.harmful.cross() / (self.harmful.samples * self.scale)

    def generator(self) -> torch.Generator:
        """Return a fresh generator on this problem's seed."""
        return torch.Generator().manual_seed(self.seed)

    @cached_property
    def rank_primary(self) -> int:
        """Rank of K_P, and so of H_P(θ) for every invertible θ."""
        return quiet_spectrum(self.primary).rank

    @cached_property
    def rank_harmful(self) -> int:
        """Rank of K_H, and so of H_H(θ) for every invertible θ."""
        return quiet_spectrum(self.harmful).rank

    def log_kappas(self, theta: Tensor) -> tuple[float, float]:
        """``log κ_P(θ)`` and ``log κ_H(θ)``; infinite where a direction was lost to rounding."""
        logs = []
        for gram, rank in (
            (self.k_primary, self.rank_primary),
            (self.k_harmful, self.rank_harmful),
        ):
            hessian = linear_hessian(theta, gram)
            if not bool(torch.isfinite(hessian).all()):
                raise NumericalError("θᵀKθ overflowed: lower the step size or the weights.")
            values = torch.linalg.eigvalsh(hessian)
            largest, smallest = float(values[-1]), float(values[-rank])
            lost = not smallest > largest * relative_cutoff(rank)
            logs.append(math.inf if lost else math.log(largest) - math.log(smallest))
        return logs[0], logs[1]

    def score(self, theta: Tensor) -> float:
        """``log κ_H(θ) − log κ_P(θ)``: the logarithm of RIR up to a constant.

        Minus infinity if a direction of either task was lost to rounding: κ over the
        directions that remain would flatter.
        """
        primary, harmful = self.log_kappas(theta)
        return -math.inf if math.inf in (primary, harmful) else harmful - primary

    def epochs(self, epochs: int, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield shuffled mini-batches ``(x_P, targets_P, x_H)``; the shorter set cycles."""
        generator = self.generator()
        data = []
        for task in self.tasks:
            inputs, labels = task.train.tensors()
            features = inputs if self.extractor is None else self.extractor(inputs)
            data.append((features.to(torch.float64), task.targets(labels)))
        (x_p, y_p), (x_h, _) = data
        for _ in range(epochs):
            longest = max(len(x_p), len(x_h))
            rows_p, rows_h = (
                torch.cat(
                    [
                        torch.randperm(len(x), generator=generator)
                        for _ in range(-(-longest // len(x)))
                    ]
                )[:longest]
                for x in (x_p, x_h)
            )
            for start in range(0, longest, size):
                batch = slice(start, start + size)
                yield x_p[rows_p[batch]], y_p[rows_p[batch]], x_h[rows_h[batch]]


@dataclass(frozen=True)
class Solution:
    """The θ a method found, with whatever it wants the record to say about the search."""

    theta: Tensor
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A defence: its name, one sentence, and what it does to linear extractors and to networks.

    Attributes:
        settings: settings of ``solve``; None where there is none.
        solve: finds θ for a linear extractor.
        network: settings of ``objective``; None where there is none.
        objective: makes the loss that trains a network, from those settings and its cut.
    """

    name: str
    summary: str
    settings: type | None = None
    solve: Callable[[LinearProblem, Any], Solution] | None = None
    network: type | None = None
    objective: Callable[[Any, Cut], Objective] | None = None

    def configure(self, values: Mapping[str, Any], *, network: bool = False) -> Any:
        """Build this method's settings, refusing unknown keys with a suggestion."""
        kind = self.network if network else self.settings
        if kind is None and network:
            raise SettingsError(
                f"method {self.name!r} solves for a linear map and trains no network; leave "
                "training out to fold that map into the network's last linear layer."
            )
        if kind is None:
            raise SettingsError(
                f"method {self.name!r} trains networks and has no linear form; use 'erase', its "
                "closed-form optimum for a linear map."
            )
        check(values, get_type_hints(kind), f"method {self.name!r}")
        return kind(**values)


@dataclass(frozen=True)
class Descent:
    """Settings of a descent on θ: how many steps, how large, by which optimizer."""

    steps: int = 100
    step: float = 0.005
    optimizer: Optimizer = "adam"

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.steps >= 1, f"steps={self.steps}: need >= 1")
        require(0 < self.step < math.inf, f"step={self.step}: need a positive number")


def make_optimizer(name: Optimizer, parameters: list[Tensor], step: float) -> torch.optim.Optimizer:
    """Return plain gradient descent or Adam (β = 0.9, 0.999; ε = 1e-8, as in the paper)."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=step, betas=(0.9, 0.999), eps=1e-8)
    return torch.optim.SGD(parameters, lr=step)


class Best:
    """Keeps the θ with the highest RIR among those offered: the paper's early stopping."""

    def __init__(self, problem: LinearProblem) -> None:
        self.problem = problem
        self.theta: Tensor | None = None
        self.score = -math.inf
        self.step = 0

    def offer(self, theta: Tensor, step: int) -> None:
        """Take ``theta`` if it immunizes better than what is held."""
        score = self.problem.score(theta)
        if score > self.score:
            self.theta, self.score, self.step = theta.detach().clone(), score, step

    def solution(self, **details: Any) -> Solution:
        """Return the best θ and the step it was seen at."""
        if self.theta is None:
            raise NumericalError(
                "every θ on the way had lost a direction of a task to rounding; lower the step "
                "size or the weights."
            )
        return Solution(self.theta, {"best_step": self.step, **details})


def descend(
    problem: LinearProblem, settings: Descent, direction: Callable[[Tensor], Tensor]
) -> Solution:
    """Move θ₀ against ``direction(θ)`` and return the best of about twenty iterates."""
    theta = problem.theta.clone()
    optimizer = make_optimizer(settings.optimizer, [theta], settings.step)
    best = Best(problem)
    stride = max(1, settings.steps // 20)
    for step in range(1, settings.steps + 1):
        theta.grad = direction(theta)
        optimizer.step()
        if step % stride == 0 or step == settings.steps:
            best.offer(theta, step)
            problem.report(step / settings.steps)
    return best.solution()
