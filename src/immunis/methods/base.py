"""What a method is, what a linear method is given and returns, and the descent they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
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
        return self._moments(self.primary), self._moments(self.harmful)

    def _moments(self, gram: Gram) -> Moments:
        k = gram.matrix() / (gram.samples * self.scale**2)
        return Moments(k, gram.cross() / (gram.samples * self.scale), quiet_spectrum(gram).rank)

    def random_heads(self) -> tuple[Tensor, Tensor]:
        """Return a random primary and a random harmful head, with entries of size ``1/√D``."""
        generator, size = torch.Generator().manual_seed(self.seed), math.sqrt(len(self.theta))
        shapes = [moments.b.shape for moments in self.moments]
        primary, harmful = (
            torch.randn(shape, generator=generator, dtype=torch.float64) / size for shape in shapes
        )
        return primary, harmful

    def kappas(self, theta: Tensor) -> tuple[float, float]:
        """Return ``κ_P(θ)`` and ``κ_H(θ)``; infinite if rounding has lost a direction."""
        primary, harmful = (self._kappa(theta, moments) for moments in self.moments)
        return primary, harmful

    def _kappa(self, theta: Tensor, moments: Moments) -> float:
        values = torch.linalg.eigvalsh(linear_hessian(theta, moments.k))
        largest, smallest = float(values[-1]), float(values[-moments.rank])
        lost = not smallest > largest * relative_cutoff(moments.rank)
        return math.inf if lost else largest / smallest

    def rir(self, theta: Tensor) -> float:
        """Return RIR of θ, up to a constant factor; 0 if rounding has lost a direction.

        κ over the directions that remain would flatter θ.
        """
        primary, harmful = self.kappas(theta)
        lost = math.inf in (primary, harmful)
        return 0.0 if lost else rir(primary=(1.0, primary), harmful=(1.0, harmful)).value


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
            "every θ of the descent lost a direction of a task to rounding; lower the step size "
            "or the weights."
        )
    return found
