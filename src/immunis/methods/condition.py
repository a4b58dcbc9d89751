"""*Condition*: the paper's Algorithm 1. R_well on the primary task, R_ill on the harmful, the loss.

Each step moves θ against ``∇_θL + λ_P·K_P⁻¹∇_θR_well(H_P) + λ_H·K_H⁻¹∇_θR_ill(H_H)``, and the
primary head ω against ``∇_ωL``. No inverse is needed: ``∇_θR(θᵀKθ) = 2Kθ·∇_H R``, so that
``K⁻¹∇_θR = 2θ·∇_H R``, which also holds for a singular K. There are four variants:

* full batch (the default): exact Hessians from the tasks' moments, and the ℓ2 loss;
* mini-batch (``batch_size``): Hessians of each batch, cross-entropy or squared loss, as in the
  paper's runs;
* ``certified``: steps of a size that surely moves its κ the right way, without the loss;
* ``search``: the paper's grid of multiples of λ and of step sizes; the best RIR wins.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from immunis.core.errors import NumericalError
from immunis.core.progress import silent
from immunis.core.settings import require, require_least
from immunis.methods.base import Best, Descent, LinearProblem, Method, Solution, descend
from immunis.models.cut import Cut
from immunis.theory.regularizers import (
    feature_hessian,
    linear_hessian,
    r_ill,
    r_ill_gradient,
    r_well,
    r_well_gradient,
)
from immunis.theory.spectrum import eigh
from immunis.theory.steps import certified_ill_step, certified_well_factors
from immunis.training.objective import SUPERVISED, Objective

MULTIPLES = (1, 2, 3, 5)
STEP_SIZES = (0.0005, 0.001, 0.005, 0.01)
MOST_ILL = 1e10  # rounding hides what lies beyond this κ_H


@dataclass(frozen=True)
class NetworkSettings:
    """The weights of the regularizers.

    Attributes:
        lambda_primary: λ_P. By default it is balanced: at the first step the regularizer pulls
            as hard as the loss.
        lambda_harmful: λ_H, likewise.
        multiple_primary: factor on a balanced λ_P (the paper searches 1, 2, 3, 5).
        multiple_harmful: factor on a balanced λ_H.
    """

    lambda_primary: float | None = None
    lambda_harmful: float | None = None
    multiple_primary: float = 1.0
    multiple_harmful: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        require_least(self, 0, *NetworkSettings.__dataclass_fields__)


@dataclass(frozen=True)
class Settings(NetworkSettings, Descent):
    """Settings of Algorithm 1.

    Attributes:
        steps: epochs. A full-batch epoch is one step; a certified one is at most one R_ill step.
        step: η.
        optimizer: ``"gd"`` as in Algorithm 1, or ``"adam"`` as in the paper's MNIST runs.
        batch_size: rows of a mini-batch; None for the full batch.
        certified: take certified steps instead of η.
        fraction: share of the way that a certified R_ill step goes to the one that sends σ_k to 0.
        search: try every multiple and step size of the paper and keep the best RIR.
        paper_scale: sum Hessians over raw inputs, as the paper's λ assume, instead of averaging
            over inputs with a mean square of one.
    """

    optimizer: Literal["gd", "adam"] = "gd"
    batch_size: int | None = None
    certified: bool = False
    fraction: float = 0.5
    search: bool = False
    paper_scale: bool = False

    def __post_init__(self) -> None:
        """Check the ranges and the combinations."""
        super().__post_init__()
        Descent.__post_init__(self)
        require_least(self, 2, "batch_size")
        require(0 < self.fraction < 1, f"fraction={self.fraction}: expected 0 < fraction < 1")
        require(
            not (self.certified and (self.search or self.batch_size)),
            "certified steps use the full batch and need no search: drop search and batch_size",
        )


def algorithm_1(problem: LinearProblem, settings: Settings) -> Solution:
    """Descend on θ and the primary head ω together (paper, Algorithm 1)."""
    batches, size = 1, settings.batch_size
    if size is not None:
        batches = math.ceil(max(problem.primary.samples, problem.harmful.samples) / size)
    terms = _full_batch(problem, settings) if size is None else _mini_batch(problem, settings, size)
    rank = problem.rank_harmful if size is None else None
    weights: list[float] = []

    def gradients(theta: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
        loss_theta, loss_omega, h_primary, h_harmful = terms(theta, omega)
        well = 2 * theta @ r_well_gradient(h_primary)
        ill = 2 * theta @ r_ill_gradient(h_harmful, rank)
        if not weights:
            weights.extend(_balanced(settings, loss_theta, well, ill))
        return loss_theta + weights[0] * well + weights[1] * ill, loss_omega

    omega = problem.random_head(problem.b_primary, problem.generator())
    best = descend(problem, settings, gradients, omega, steps=settings.steps * batches)
    return best.solution(lambda_primary=weights[0], lambda_harmful=weights[1], step=settings.step)


Terms = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]  # ∇_θL, ∇_ωL, H_P, H_H


def _full_batch(problem: LinearProblem, settings: Settings) -> Terms:
    """Exact terms of the mean ℓ2 loss, from moments."""
    n_p, n_h, scale = 1, 1, 1.0
    if settings.paper_scale:
        n_p, n_h, scale = problem.primary.samples, problem.harmful.samples, problem.scale
    k_p, k_h = problem.k_primary * n_p * scale**2, problem.k_harmful * n_h * scale**2
    b_p = problem.b_primary * n_p * scale

    def terms(theta: Tensor, omega: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        residual = (k_p @ theta @ omega - b_p) * 2 / n_p
        hessians = linear_hessian(theta, k_p), linear_hessian(theta, k_h)
        return residual @ omega.T, theta.T @ residual, *hessians

    return terms


def _mini_batch(problem: LinearProblem, settings: Settings, size: int) -> Terms:
    """Terms of the next mini-batch: cross-entropy or mean squared loss, Hessians of the batch."""
    rows = batches(problem, settings.steps, size)
    scale = 1.0 if settings.paper_scale else problem.scale

    def terms(theta: Tensor, omega: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x_p, y_p, x_h = next(rows)
        x_p, x_h = x_p / scale, x_h / scale
        leaves = theta.detach().requires_grad_(), omega.detach().requires_grad_()
        outputs = x_p @ leaves[0] @ leaves[1]
        if problem.tasks[0].kind == "classification":
            loss = functional.cross_entropy(outputs, y_p)
        else:
            loss = (outputs - y_p).square().sum() / len(x_p)
        count = 1 if settings.paper_scale else len(x_p)
        loss_theta, loss_omega = torch.autograd.grad(loss, leaves)
        hessians = feature_hessian(x_p @ theta) / count, feature_hessian(x_h @ theta) / count
        return loss_theta, loss_omega, *hessians

    return terms


def batches(
    problem: LinearProblem, epochs: int, size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield shuffled mini-batches ``(x_P, targets_P, x_H)``; the shorter task is repeated."""
    generator, data = problem.generator(), []
    for task in problem.tasks:
        inputs, labels = task.train.tensors()
        features = inputs if problem.extractor is None else problem.extractor(inputs)
        data.append((features.to(torch.float64), task.targets(labels)))
    (x_p, y_p), (x_h, _) = data
    longest = max(len(x_p), len(x_h))

    def shuffled(rows: int) -> Tensor:
        rounds = math.ceil(longest / rows)
        return torch.cat([torch.randperm(rows, generator=generator) for _ in range(rounds)])

    for _ in range(epochs):
        rows_p, rows_h = shuffled(len(x_p))[:longest], shuffled(len(x_h))[:longest]
        for p, h in zip(rows_p.split(size), rows_h.split(size), strict=True):
            yield x_p[p], y_p[p], x_h[h]


def _balanced(settings: Settings, loss: Tensor, well: Tensor, ill: Tensor) -> Iterator[float]:
    """λ_P and λ_H: as given, or such that each term pulls as hard as the loss."""
    for term, given, multiple in (
        (well, settings.lambda_primary, settings.multiple_primary),
        (ill, settings.lambda_harmful, settings.multiple_harmful),
    ):
        size = float(term.norm())
        balanced = multiple * (float(loss.norm()) / size if size > 0 else 0.0)
        yield balanced if given is None else given


def certified(problem: LinearProblem, settings: Settings) -> Solution:
    """Take certified steps: R_well down to κ_P = 1, then one R_ill step and R_well again.

    The first R_well steps reach RIR*. More is gained only where there are free directions, and
    the loop ends when RIR gains no more. The loss is left out: for every invertible θ the
    primary optimum is the same.
    """
    best, eye = Best(problem), torch.eye(len(problem.theta), dtype=torch.float64)
    theta = _well_conditioned(problem, problem.theta)
    best.offer(theta, 0)
    for step in range(1, settings.steps + 1):
        hessian = linear_hessian(theta, problem.k_harmful)
        eta = certified_ill_step(eigh(hessian)[0][: problem.rank_harmful], settings.fraction)
        theta = theta @ (eye - 2 * eta * r_ill_gradient(hessian, problem.rank_harmful))
        theta = _well_conditioned(problem, theta)
        problem.progress("certified steps", step / settings.steps)
        if problem.rir(theta) < best.rir * (1 + 1e-6) or problem.kappas(theta)[1] > MOST_ILL:
            break
        best.offer(theta, step)
    return best.solution()


def _well_conditioned(problem: LinearProblem, theta: Tensor) -> Tensor:
    """Return θ after k − 1 certified R_well steps, where κ_P = 1; H_P keeps its eigenvectors."""
    values, vectors = eigh(linear_hessian(theta, problem.k_primary))
    rank = problem.rank_primary
    scaling = torch.ones_like(values)
    scaling[:rank] = certified_well_factors(values[:rank], len(theta), rank - 1)
    return theta @ (vectors * scaling) @ vectors.T


def search(problem: LinearProblem, settings: Settings) -> Solution:
    """Run Algorithm 1 with every step size and multiple of the paper; return the best RIR."""
    grid = list(itertools.product(STEP_SIZES, MULTIPLES, MULTIPLES))
    quiet, found = dataclasses.replace(problem, progress=silent), []
    for index, (step, a, b) in enumerate(grid):
        problem.progress("search", index / len(grid))
        trial = dataclasses.replace(settings, step=step, multiple_primary=a, multiple_harmful=b)
        try:
            found.append(algorithm_1(quiet, trial))
        except NumericalError:
            continue  # this corner of the grid diverges; the others may not
    if not found:
        raise NumericalError("every step size and multiple of the search diverged.")
    best = max(found, key=lambda solution: problem.rir(solution.theta))
    tried = {"trials": len(grid), "diverged": len(grid) - len(found)}
    return Solution(best.theta, {**best.details, **tried})


def solve(problem: LinearProblem, settings: Settings) -> Solution:
    """Run the variant of Algorithm 1 that the settings ask for."""
    if settings.certified:
        return certified(problem, settings)
    return search(problem, settings) if settings.search else algorithm_1(problem, settings)


def objective(settings: NetworkSettings, cut: Cut) -> Objective:
    """Return ``L(D_P) + λ_P·R_well(H_P) + λ_H·R_ill(H_H)`` of batch Hessians ``ZᵀZ`` (eq. 13)."""
    return Objective(
        lambda view: {
            SUPERVISED: view.supervised,
            "r_well": r_well(feature_hessian(view.primary[""], across=True)),
            "r_ill": r_ill(feature_hessian(view.harmful[""], across=True)),
        },
        {"r_well": settings.lambda_primary, "r_ill": settings.lambda_harmful},
        multiples={"r_well": settings.multiple_primary, "r_ill": settings.multiple_harmful},
        needs={"primary": cut.width},
    )


METHOD = Method(
    "condition",
    "the paper's Algorithm 1: R_well, R_ill and the loss",
    Settings,
    solve,
    NetworkSettings,
    objective,
    order=4,
    demo={"Alg. 1": {"search": True}, "Alg. 1, certified": {"certified": True}},
)
