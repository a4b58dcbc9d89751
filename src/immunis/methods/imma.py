"""*IMMA* (paper, baseline 2; Zheng et al. 2024): bi-level, unrolled through the attacker.

The lower level lets the attacker descend on ``L(D_H, w, θ)`` in θ to reach θ*; the upper
level raises ``L(D_H, w, θ*) − L(D_P, ω, θ*)`` in θ, differentiating through θ*. Both heads
follow by gradient descent on their own loss. The ℓ2 losses need the tasks' moments only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from immunis.core.settings import require
from immunis.methods import imma_network as network
from immunis.methods.base import Descent, LinearProblem, Method, Solution, descend


@dataclass(frozen=True)
class Settings(Descent):
    """The upper level's descent, and the lower level's number and size of steps."""

    inner_steps: int = 5
    inner_step: float = 0.01

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        require(self.inner_steps >= 1, f"inner_steps={self.inner_steps}: need >= 1")
        require(0 < self.inner_step < math.inf, f"inner_step={self.inner_step}: need > 0")


def l2_loss(theta: Tensor, head: Tensor, gram: Tensor, cross: Tensor) -> Tensor:
    """Mean of ``‖xᵀθw − y‖²`` up to the constant ``tr(YᵀY)/n``, from moments."""
    features = theta @ head
    return (features * (gram @ features - 2 * cross)).sum()


def attacked(theta: Tensor, head: Tensor, problem: LinearProblem, settings: Settings) -> Tensor:
    """θ* after the attacker's descent on the harmful loss, differentiable in θ."""
    for _ in range(settings.inner_steps):
        loss = l2_loss(theta, head, problem.k_harmful, problem.b_harmful)
        (gradient,) = torch.autograd.grad(loss, theta, create_graph=True)
        theta = theta - settings.inner_step * gradient
    return theta


def solve(problem: LinearProblem, settings: Settings) -> Solution:
    """Descend on ``L(D_P, ω, θ*) − L(D_H, w, θ*)`` through the unrolled attacker."""
    generator = problem.generator()
    heads = {
        name: torch.randn(cross.shape, generator=generator, dtype=torch.float64)
        / len(problem.theta) ** 0.5
        for name, cross in (("primary", problem.b_primary), ("harmful", problem.b_harmful))
    }

    def direction(theta: Tensor) -> Tensor:
        theta = theta.detach().requires_grad_()
        w, omega = heads["harmful"], heads["primary"]
        star = attacked(theta, w, problem, settings)
        upper = l2_loss(star, omega, problem.k_primary, problem.b_primary) - l2_loss(
            star, w, problem.k_harmful, problem.b_harmful
        )
        (gradient,) = torch.autograd.grad(upper, theta)
        fixed = theta.detach()
        for name, gram, cross in (
            ("primary", problem.k_primary, problem.b_primary),
            ("harmful", problem.k_harmful, problem.b_harmful),
        ):
            residual = gram @ fixed @ heads[name] - cross
            heads[name] = heads[name] - 2 * settings.inner_step * fixed.T @ residual
        return gradient

    return descend(problem, settings, direction)


METHOD = Method(
    "imma",
    "IMMA: bi-level, unrolled through the attacker (baseline)",
    Settings,
    solve,
    network.Settings,
    network.objective,
)
