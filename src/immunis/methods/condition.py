"""*Condition* (the paper's Algorithm 1): R_well on primary, R_ill on harmful, and the loss.

No inverse is needed. For both regularizers ``∇_θR(θᵀKθ) = 2Kθ·∇_H R``, so the
preconditioned gradient is ``K⁻¹∇_θR = 2θ·∇_H R``, also for singular K. Four variants:

* full batch (``batch_size=None``): exact Hessians from the tasks' moments, ℓ2 loss;
* mini-batch: Hessians of each batch, cross-entropy or squared loss, as the paper ran it;
* ``certified``: steps of certified size, each of which surely moves its κ the right way.
  R_well runs to κ_P = 1 in k−1 steps, which is RIR*; then one R_ill step and R_well again,
  for as long as RIR gains, as it does where there are free directions. The supervised term
  is left out: for an invertible θ the primary optimum is the same whatever θ is;
* ``search``: the paper's grid over λ multiples {1,2,3,5} and step sizes, best RIR wins.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from immunis.core.errors import NumericalError
from immunis.core.settings import require
from immunis.methods import condition_network as network
from immunis.methods.base import (
    Best,
    Descent,
    LinearProblem,
    Method,
    Optimizer,
    Solution,
    make_optimizer,
)
from immunis.theory.guarantees import certified_ill_step, certified_well_factors
from immunis.theory.regularizers import (
    feature_hessian,
    linear_hessian,
    r_ill_gradient,
    r_well_gradient,
)
from immunis.theory.spectrum import eigh

MULTIPLES = (1, 2, 3, 5)
STEP_SIZES = (0.0005, 0.001, 0.005, 0.01)
MOST_ILL = 1e10


@dataclass(frozen=True)
class Settings(Descent):
    """Algorithm 1's settings.

    Attributes:
        steps: epochs; one step each if full-batch, at most one R_ill step each if certified.
        step: η.
        optimizer: ``"gd"`` as in Algorithm 1, or ``"adam"`` as in the paper's MNIST runs.
        lambda_primary: λ_P; left out, it balances the gradient norms at the start.
        lambda_harmful: λ_H; likewise.
        multiple_primary: factor on a balanced λ_P (the paper searches 1, 2, 3, 5).
        multiple_harmful: factor on a balanced λ_H.
        batch_size: rows per mini-batch; None for full-batch Hessians.
        certified: take certified steps instead of η.
        fraction: how far each certified R_ill step goes towards sending σ_k to zero.
        search: try every multiple and step size of the paper, keep the best RIR.
        paper_scale: sum Hessians over raw inputs, as the paper's λ values assume, instead
            of averaging over inputs of unit mean square.
    """

    optimizer: Optimizer = "gd"
    lambda_primary: float | None = None
    lambda_harmful: float | None = None
    multiple_primary: float = 1.0
    multiple_harmful: float = 1.0
    batch_size: int | None = None
    certified: bool = False
    fraction: float = 0.5
    search: bool = False
    paper_scale: bool = False

    def __post_init__(self) -> None:
        """Check the ranges and the combinations."""
        super().__post_init__()
        for name in ("lambda_primary", "lambda_harmful"):
            value = getattr(self, name)
            require(value is None or 0 <= value < math.inf, f"{name}={value}: need >= 0")
        for name in ("multiple_primary", "multiple_harmful"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"{name}={value}: need >= 0")
        require(self.batch_size is None or self.batch_size >= 2, "batch_size: need at least 2 rows")
        require(0 < self.fraction < 1, f"fraction={self.fraction}: need 0 < fraction < 1")
        require(
            not (self.certified and (self.search or self.batch_size)),
            "certified steps are full-batch and need no search: drop search and batch_size",
        )


def regularizer_directions(
    theta: Tensor, hessian_primary: Tensor, hessian_harmful: Tensor, rank_harmful: int | None
) -> tuple[Tensor, Tensor]:
    """``K_P⁻¹∇_θR_well(H_P)`` and ``K_H⁻¹∇_θR_ill(H_H)``, that is ``2θ·∇_H R`` of each."""
    return (
        2 * theta @ r_well_gradient(hessian_primary),
        2 * theta @ r_ill_gradient(hessian_harmful, rank_harmful),
    )


def _certified(problem: LinearProblem, settings: Settings) -> Solution:
    best, eye = Best(problem), torch.eye(len(problem.theta), dtype=torch.float64)
    theta = _whitened(problem, problem.theta)
    best.offer(theta, 0)
    for step in range(1, settings.steps + 1):
        hessian = linear_hessian(theta, problem.k_harmful)
        kept = eigh(hessian)[0][: problem.rank_harmful]
        eta = certified_ill_step(kept, settings.fraction)
        theta = theta @ (eye - 2 * eta * r_ill_gradient(hessian, problem.rank_harmful))
        theta = _whitened(problem, theta)
        problem.report(step / settings.steps)
        _, log_kappa = problem.log_kappas(theta)
        gain = problem.score(theta) - best.score
        if gain < 1e-6 or log_kappa > math.log(MOST_ILL):
            break  # the ceiling is reached, or the next κ_H could not be told from rounding
        best.offer(theta, step)
    return best.solution()


def _whitened(problem: LinearProblem, theta: Tensor) -> Tensor:
    """θ after certified R_well steps down to κ_P = 1; H_P keeps its eigenvectors on the way."""
    values, vectors = eigh(linear_hessian(theta, problem.k_primary))
    rank = problem.rank_primary
    scaling = torch.ones_like(values)
    scaling[:rank] = certified_well_factors(values[:rank], len(theta), rank - 1)
    return theta @ (vectors * scaling) @ vectors.T


class Terms(NamedTuple):
    """What one step needs: gradients of the supervised loss, and both Hessians."""

    theta: Tensor
    omega: Tensor
    primary: Tensor
    harmful: Tensor


def _full_batch(
    problem: LinearProblem, settings: Settings, theta: Tensor, omega: Tensor
) -> Iterator[Terms]:
    """Exact terms of the mean ℓ2 loss, from moments, at θ and ω as they are when asked."""
    n_p, n_h, scale = problem.primary.samples, problem.harmful.samples, problem.scale
    if not settings.paper_scale:
        n_p = n_h = 1
        scale = 1.0
    k_p, k_h = problem.k_primary * n_p * scale**2, problem.k_harmful * n_h * scale**2
    b_p = problem.b_primary * n_p * scale
    for _ in range(settings.steps):
        residual = (k_p @ theta @ omega - b_p) * 2 / n_p
        yield Terms(
            residual @ omega.T,
            theta.T @ residual,
            linear_hessian(theta, k_p),
            linear_hessian(theta, k_h),
        )


def _mini_batches(
    problem: LinearProblem, settings: Settings, theta: Tensor, omega: Tensor, size: int
) -> Iterator[Terms]:
    """Terms of each mini-batch: cross-entropy or mean squared loss, Hessians of the batch."""
    classify = problem.tasks[0].kind == "classification"
    scale = 1.0 if settings.paper_scale else problem.scale
    for x_p, y_p, x_h in problem.epochs(settings.steps, size):
        x_p, x_h = x_p / scale, x_h / scale
        leaves = theta.detach().requires_grad_(), omega.detach().requires_grad_()
        outputs = x_p @ leaves[0] @ leaves[1]
        if classify:
            loss = functional.cross_entropy(outputs, y_p)
        else:
            loss = (outputs - y_p).square().sum() / len(x_p)
        count = 1 if settings.paper_scale else len(x_p)
        grad_theta, grad_omega = torch.autograd.grad(loss, leaves)
        yield Terms(
            grad_theta,
            grad_omega,
            feature_hessian(x_p @ theta) / count,
            feature_hessian(x_h @ theta) / count,
        )


def _descend(problem: LinearProblem, settings: Settings) -> Solution:
    theta = problem.theta.clone()
    omega = torch.randn(
        problem.b_primary.shape, generator=problem.generator(), dtype=torch.float64
    ) / math.sqrt(len(theta))
    optimizer = make_optimizer(settings.optimizer, [theta, omega], settings.step)
    if settings.batch_size is None:
        steps, total = _full_batch(problem, settings, theta, omega), settings.steps
        rank: int | None = problem.rank_harmful
    else:
        size, rank = settings.batch_size, None
        steps = _mini_batches(problem, settings, theta, omega, size)
        rows = max(problem.primary.samples, problem.harmful.samples)
        total = settings.steps * math.ceil(rows / size)
    best, weights, stride = Best(problem), (0.0, 0.0), max(1, total // 20)
    for step, terms in enumerate(steps, 1):
        well, ill = regularizer_directions(theta, terms.primary, terms.harmful, rank)
        if step == 1:
            weights = _balance(settings, terms.theta, well, ill)
        theta.grad = terms.theta + weights[0] * well + weights[1] * ill
        omega.grad = terms.omega
        optimizer.step()
        if step % stride == 0 or step == total:
            best.offer(theta, step)
            problem.report(step / total)
    return best.solution(lambda_primary=weights[0], lambda_harmful=weights[1], step=settings.step)


def _balance(settings: Settings, loss: Tensor, well: Tensor, ill: Tensor) -> tuple[float, float]:
    """λ_P and λ_H: as given, or such that each term pulls as hard as the supervised loss."""

    def balanced(direction: Tensor) -> float:
        size = float(direction.norm())
        return float(loss.norm()) / size if size > 0 else 0.0

    lambda_p, lambda_h = settings.lambda_primary, settings.lambda_harmful
    return (
        settings.multiple_primary * balanced(well) if lambda_p is None else lambda_p,
        settings.multiple_harmful * balanced(ill) if lambda_h is None else lambda_h,
    )


def _search(problem: LinearProblem, settings: Settings) -> Solution:
    grid = list(itertools.product(STEP_SIZES, MULTIPLES, MULTIPLES))
    found: list[tuple[float, Solution]] = []
    for index, (step, a, b) in enumerate(grid):
        problem.report(index / len(grid))
        trial = dataclasses.replace(
            settings, search=False, step=step, multiple_primary=a, multiple_harmful=b
        )
        try:
            solution = _descend(dataclasses.replace(problem, report=lambda share: None), trial)
        except NumericalError:
            continue  # this corner of the grid diverges; the others may not
        found.append((problem.score(solution.theta), solution))
    if not found:
        raise NumericalError("every step size and multiple of the search diverged.")
    _, best = max(found, key=lambda pair: pair[0])
    tried = {"trials": len(grid), "diverged": len(grid) - len(found)}
    return Solution(best.theta, {**best.details, **tried})


def solve(problem: LinearProblem, settings: Settings) -> Solution:
    """Run Algorithm 1 in the variant the settings name."""
    if settings.certified:
        return _certified(problem, settings)
    return (_search if settings.search else _descend)(problem, settings)


METHOD = Method(
    "condition",
    "the paper's Algorithm 1: R_well, R_ill and the loss",
    Settings,
    solve,
    network.Settings,
    network.objective,
)
