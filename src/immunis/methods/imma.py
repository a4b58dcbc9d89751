"""*IMMA* (paper, baseline 2; Zheng et al. 2024): bi-level, unrolled through the attacker.

The attacker descends on ``L(D_H, w, θ)`` in θ and reaches θ*. The defender raises
``L(D_H, w, θ*) − L(D_P, ω, θ*)`` and differentiates through θ*. w follows features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from immunis.core.settings import MOST, require_least, require_most
from immunis.methods.base import Descent, LinearProblem, Method, Moments, Solution, best_of, descent
from immunis.models.cut import Cut
from immunis.training.objective import SUPERVISED, Attacker, Balanced, Objective


@dataclass(frozen=True)
class Settings(Descent):
    """The upper level's descent, and the number and size of the attacker's steps."""

    inner_steps: int = 5
    inner_step: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, 1, "inner_steps")
        require_most(self, MOST["inner_steps"], "inner_steps")
        require_least(self, 0, "inner_step", above=True)


def l2_loss(theta: Tensor, head: Tensor, task: Moments) -> Tensor:
    """Return the mean of ``‖xᵀθw − y‖²`` without its constant ``tr(YᵀY)/n``."""
    features = theta @ head
    return (features * (task.k @ features - 2 * task.b)).sum()


def attacked(theta: Tensor, head: Tensor, harmful: Moments, settings: Settings) -> Tensor:
    """Return θ* after the attacker's descent on the harmful loss, differentiable in θ."""
    for _ in range(settings.inner_steps):
        loss = l2_loss(theta, head, harmful)
        (gradient,) = torch.autograd.grad(loss, theta, create_graph=True)
        theta = theta - settings.inner_step * gradient
    return theta


def solve(problem: LinearProblem, settings: Settings) -> Solution:
    """Descend on ``L(D_P, ω, θ*) − L(D_H, w, θ*)``; each head descends on its own loss."""
    primary, harmful = problem.moments
    omega, w = problem.random_heads()

    def followed(head: Tensor, theta: Tensor, task: Moments) -> Tensor:
        return head - 2 * settings.inner_step * theta.T @ (task.k @ theta @ head - task.b)

    def gradient(theta: Tensor) -> tuple[Tensor]:
        nonlocal omega, w
        start = theta.detach().requires_grad_()
        star = attacked(start, w, harmful, settings)
        upper = l2_loss(star, omega, primary) - l2_loss(star, w, harmful)
        (found,) = torch.autograd.grad(upper, start)
        omega, w = followed(omega, theta, primary), followed(w, theta, harmful)
        return (found,)

    return best_of(problem, descent(problem, settings, gradient))


@dataclass(frozen=True)
class NetworkSettings(Balanced):
    """The upper level's weight, and the attacker.

    Attributes:
        steps: number of the attacker's steps; each is ``rate`` times the size of the parameters.
        order: 1 takes the upper gradient at θ*; 2 carries it back through the steps to θ.
    """

    steps: int = 1
    rate: float = 0.001
    order: Literal[1, 2] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, 1, "steps")
        require_most(self, MOST["inner_steps"], "steps")
        require_least(self, 0, "rate", above=True)


def objective(settings: NetworkSettings, cut: Cut) -> Objective:
    """Return ``L(D_P, ω, θ*) − λ·L(D_H, w, θ*)``: both losses at what the attacker reaches."""
    attack = settings.steps, settings.rate, settings.order
    return Objective(
        lambda view: {},
        {"attacked": settings.weight},
        after=lambda view: {SUPERVISED: view.supervised, "attacked": -view.harmful_loss},
        after_primary=True,
        attacker=Attacker(lambda view: view.harmful_loss, *attack),
        multiples={"attacked": settings.multiple},
        head=True,
    )


SUMMARY = "IMMA: bi-level, unrolled through the attacker (baseline)"
METHOD = Method(
    "imma", SUMMARY, Settings, solve, NetworkSettings, objective, order=2, demo={"IMMA": {}}
)
