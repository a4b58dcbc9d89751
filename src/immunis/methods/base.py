"""What a method is, what a linear method is given and returns, and the descent they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_type_hints

import torch
from torch import Tensor

from immunis.core.errors import NumericalError, SettingsError
from immunis.core.progress import Progress, silent
from immunis.core.settings import check, require_least
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.theory.gram import Gram
from immunis.theory.regularizers import linear_hessian
from immunis.theory.rir import rir
from immunis.theory.spectrum import quiet_spectrum, relative_cutoff
from immunis.training.objective import Objective


@dataclass(frozen=True)
class LinearProblem:
    """A linear extractor θ₀ and the two tasks that it is immunized for, as moments.

    ``scale`` is one number for both tasks: divided by it, the inputs have a mean square of one.
    κ does not depend on it, and one step size fits data in any unit.
    """

    theta: Tensor
    primary: Gram
    harmful: Gram
    tasks: tuple[Task, Task]
    extractor: Callable[[Tensor], Tensor] | None = None
    seed: int = 0
    progress: Progress = silent

    @cached_property
    def scale(self) -> float:
        """Root mean square of the inputs over both tasks."""
        grams = self.primary, self.harmful
        return math.sqrt(sum(float(g.matrix().diagonal().mean()) / g.samples for g in grams) / 2)

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

    @cached_property
    def rank_primary(self) -> int:
        """Rank of K_P, and so of H_P(θ) for every invertible θ."""
        return quiet_spectrum(self.primary).rank

    @cached_property
    def rank_harmful(self) -> int:
        """Rank of K_H, and so of H_H(θ) for every invertible θ."""
        return quiet_spectrum(self.harmful).rank

    def generator(self) -> torch.Generator:
        """Return a new generator with this problem's seed."""
        return torch.Generator().manual_seed(self.seed)

    def random_head(self, cross: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random head of the shape of ``cross`` (D×C), with entries of size ``1/√D``."""
        head = torch.randn(cross.shape, generator=generator, dtype=torch.float64)
        return head / math.sqrt(len(self.theta))

    def kappas(self, theta: Tensor) -> tuple[float, float]:
        """Return ``κ_P(θ)`` and ``κ_H(θ)``; infinite if rounding has lost a direction."""

        def kappa(gram: Tensor, rank: int) -> float:
            hessian = linear_hessian(theta, gram)
            if not bool(torch.isfinite(hessian).all()):
                raise NumericalError("θᵀKθ overflowed: lower the step size or the weights.")
            values = torch.linalg.eigvalsh(hessian)
            largest, smallest = float(values[-1]), float(values[-rank])
            return largest / smallest if smallest > largest * relative_cutoff(rank) else math.inf

        return kappa(self.k_primary, self.rank_primary), kappa(self.k_harmful, self.rank_harmful)

    def rir(self, theta: Tensor) -> float:
        """Return RIR of θ, up to a constant factor; 0 if rounding has lost a direction.

        κ over the directions that remain would flatter θ.
        """
        primary, harmful = self.kappas(theta)
        ratio = rir(primary=(1.0, primary), harmful=(1.0, harmful))
        return 0.0 if math.inf in (primary, harmful) else ratio.value


@dataclass(frozen=True)
class Solution:
    """The θ that a method found, and what the record should say about the search."""

    theta: Tensor
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A defence: what it does to linear extractors, to networks, or to both.

    Attributes:
        settings: dataclass of the settings of ``solve``.
        solve: finds θ for a linear extractor.
        network: dataclass of the settings of ``objective``.
        objective: returns the loss that trains a network, from its settings and the cut network.
        order: place in lists of methods; equal ones are sorted by name.
        demo: settings that ``immunis demo`` runs, by label; by default the method as it is.
    """

    name: str
    summary: str
    settings: type | None = None
    solve: Callable[[LinearProblem, Any], Solution] | None = None
    network: type | None = None
    objective: Callable[[Any, Cut], Objective] | None = None
    order: int = 100
    demo: Mapping[str, Mapping[str, Any]] | None = None

    def configure(self, values: Mapping[str, Any], *, network: bool = False) -> Any:
        """Return this method's settings; refuse unknown keys, wrong types and bad ranges."""
        kind = self.network if network else self.settings
        if kind is None:
            raise SettingsError(
                f"method {self.name!r} finds a linear map and trains no network. Leave training "
                "out: the map is then folded into the network's last linear layer."
                if network
                else f"method {self.name!r} trains networks and has no linear form. For a linear "
                "extractor use 'erase', its closed-form optimum."
            )
        check(values, get_type_hints(kind), f"method {self.name!r}")
        return kind(**values)


@dataclass(frozen=True)
class Descent:
    """Settings of a descent on θ: the number of steps, their size, the optimizer."""

    steps: int = 100
    step: float = 0.005
    optimizer: Literal["gd", "adam"] = "adam"

    def __post_init__(self) -> None:
        """Check the ranges."""
        require_least(self, 1, "steps")
        require_least(self, 0, "step", above=True)


class Best:
    """Keep the θ with the highest RIR among those offered: the paper's early stopping."""

    def __init__(self, problem: LinearProblem) -> None:
        self.problem = problem
        self.theta: Tensor | None = None
        self.rir = 0.0
        self.step = 0

    def offer(self, theta: Tensor, step: int) -> None:
        """Keep ``theta`` if it immunizes better than the one kept so far."""
        rir = self.problem.rir(theta)
        if rir > self.rir:
            self.theta, self.rir, self.step = theta.detach().clone(), rir, step

    def solution(self, **details: Any) -> Solution:
        """Return the best θ, with its step among the details."""
        if self.theta is None:
            raise NumericalError(
                "every θ of the descent lost a direction of a task to rounding; lower the step "
                "size or the weights."
            )
        return Solution(self.theta, {"best_step": self.step, **details})


def descend(
    problem: LinearProblem,
    settings: Descent,
    gradients: Callable[..., tuple[Tensor, ...]],
    *others: Tensor,
    steps: int | None = None,
) -> Best:
    """Descend from θ₀ along ``gradients(θ, *others)``; return the best of about twenty iterates.

    ``others`` are parameters that descend together with θ, such as a head.
    """
    parameters, total = [problem.theta.clone(), *others], steps or settings.steps
    if settings.optimizer == "adam":  # β and ε as in the paper
        optimizer: torch.optim.Optimizer = torch.optim.Adam(
            parameters, lr=settings.step, betas=(0.9, 0.999), eps=1e-8
        )
    else:
        optimizer = torch.optim.SGD(parameters, lr=settings.step)
    best, stride = Best(problem), max(1, total // 20)
    for step in range(1, total + 1):
        for parameter, gradient in zip(parameters, gradients(*parameters), strict=True):
            parameter.grad = gradient
        optimizer.step()
        if step % stride == 0 or step == total:
            best.offer(parameters[0], step)
            problem.progress("descent", step / total)
    return best
