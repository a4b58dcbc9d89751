"""What a method is, what a linear method is given and returns, and the descent they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from immunis.core.errors import NumericalError, SettingsError
from immunis.core.jobs import Progress, silent
from immunis.core.settings import build, require_least
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.theory.gram import Gram
from immunis.theory.regularizers import linear_hessian
from immunis.theory.spectrum import quiet_spectrum, relative_cutoff
from immunis.training.objective import Objective


@dataclass(frozen=True)
class Moments:
    """Mean moments of a task's scaled inputs: ``K/(n·scale²)``, ``XᵀY/(n·scale)``, rank of K."""

    k: Tensor
    b: Tensor
    rank: int


@dataclass(frozen=True)
class LinearProblem:
    """A linear extractor θ₀ and the two tasks it is immunized for, as Grams of their inputs."""

    theta: Tensor
    primary: Gram
    harmful: Gram
    tasks: tuple[Task, Task]
    extractor: Callable[[Tensor], Tensor] | None = None
    seed: int = 0
    progress: Progress = silent

    @cached_property
    def scale(self) -> float:
        """Root mean square of the inputs over both tasks.

        Methods divide by it: κ does not change, and one step size fits data in any unit.
        """
        grams = self.primary, self.harmful
        return math.sqrt(sum(float(g.matrix().diagonal().mean()) / g.samples for g in grams) / 2)

    @cached_property
    def moments(self) -> tuple[Moments, Moments]:
        """Mean moments of the primary and of the harmful task, at unit scale."""

        def scaled(gram: Gram) -> Moments:
            k = gram.matrix() / (gram.samples * self.scale**2)
            return Moments(k, gram.cross() / (gram.samples * self.scale), quiet_spectrum(gram).rank)

        return scaled(self.primary), scaled(self.harmful)

    def random_heads(self) -> list[Tensor]:
        """Return a random primary and a random harmful head, with entries of size ``1/√D``."""
        draw = torch.Generator().manual_seed(self.seed)
        heads = [torch.randn(m.b.shape, generator=draw, dtype=m.b.dtype) for m in self.moments]
        return [head / math.sqrt(len(self.theta)) for head in heads]

    def kappas(self, theta: Tensor) -> list[float]:
        """Return ``κ_P(θ)`` and ``κ_H(θ)``; infinite if rounding has lost a direction."""
        found = []
        for m in self.moments:
            values = torch.linalg.eigvalsh(linear_hessian(theta, m.k))
            largest, smallest = float(values[-1]), float(values[-m.rank])
            there = smallest > largest * relative_cutoff(m.rank)
            found.append(largest / smallest if there else math.inf)
        return found

    def rir(self, theta: Tensor) -> float:
        """Return ``κ_H/κ_P``, which is RIR up to a constant; 0 if rounding has lost a direction.

        κ of the remaining directions alone would make θ look better than it is.
        """
        primary, harmful = self.kappas(theta)
        return 0.0 if math.inf in (primary, harmful) else harmful / primary


@dataclass(frozen=True)
class Solution:
    """The θ that a method found, and what the record should say about the search."""

    theta: Tensor
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A defence: what it does to linear extractors, to networks, or to both.

    Attributes:
        settings: dataclass of the settings of ``solve``, which finds θ for a linear extractor.
        network: dataclass of the settings of ``objective``, which returns the loss that trains a
            network.
        order: place in lists of methods; equal ones are sorted by name.
        training: returns how ``objective`` is trained, for a network and its primary task, unless
            the user says otherwise; by default as ``Training`` says.
        searched: setting that is raised as far as the primary score allows, where it is None.
        demo: settings that ``immunis demo`` runs, by label; by default the method as it is.
    """

    name: str
    summary: str
    settings: type | None = None
    solve: Callable[[LinearProblem, Any], Solution] | None = None
    network: type | None = None
    objective: Callable[[Any, Cut], Objective] | None = None
    training: Callable[[nn.Module, Task], Mapping[str, Any]] | None = None
    searched: str = ""
    order: int = 100
    demo: Mapping[str, Mapping[str, Any]] | None = None

    def configure(self, values: Mapping[str, Any], *, network: bool = False) -> Any:
        """Return this method's settings; refuse unknown keys, wrong types and bad ranges."""
        kind = self.network if network else self.settings
        if kind is None and network:
            raise SettingsError(
                f"method {self.name!r} finds a linear map and trains no network. Leave training "
                "out: the map is then folded into the network's last linear layer."
            )
        if kind is None:
            raise SettingsError(
                f"method {self.name!r} trains networks and has no linear form. For a linear "
                "extractor use 'erase', its closed-form optimum."
            )
        return build(kind, values, f"method {self.name!r}")


@dataclass(frozen=True)
class Descent:
    """Settings of a descent on θ: the number of steps, their size, the optimizer."""

    steps: int = 100
    step: float = 0.005
    optimizer: Literal["gd", "adam"] = "adam"

    def __post_init__(self) -> None:
        require_least(self, 1, "steps")
        require_least(self, 0, "step", above=True)


def descent(
    problem: LinearProblem,
    settings: Descent,
    gradients: Callable[..., tuple[Tensor, ...]],
    *others: Tensor,
    steps: int | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Descend from θ₀ along ``gradients(θ, *others)``; yield about twenty ``(step, θ)``.

    ``others`` are parameters that descend together with θ, such as a head.
    """
    parameters, total = [problem.theta.clone(), *others], steps or settings.steps
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.SGD
    optimizer = kind(parameters, lr=settings.step)  # Adam's β and ε are the paper's
    stride = max(1, total // 20)
    for step in range(1, total + 1):
        for parameter, gradient in zip(parameters, gradients(*parameters), strict=True):
            parameter.grad = gradient
        optimizer.step()
        if step % stride == 0 or step == total:
            yield step, parameters[0]
            problem.progress("descent", step / total)


def best_of(problem: LinearProblem, path: Iterable[tuple[int, Tensor]]) -> Solution:
    """Return the θ of the highest RIR on a path: the paper's early stopping."""
    found, best = None, 0.0
    for step, theta in path:
        value = problem.rir(theta)
        if value > best:
            found, best = Solution(theta.detach().clone(), {"best_step": step}), value
    if found is None:
        raise NumericalError(
            "every θ lost a direction of a task to rounding; lower the step size or the weights."
        )
    return found
