"""*Condition*: the paper's Algorithm 1. R_well on the primary task, R_ill on the harmful, the loss.

Each step moves θ against ``∇_θL + λ_P·K_P⁻¹∇_θR_well(H_P) + λ_H·K_H⁻¹∇_θR_ill(H_H)``, and the
primary head ω against ``∇_ωL``. As ``∇_θR(θᵀKθ) = 2Kθ·∇_H R``, no inverse is needed, and K may be
singular: ``K⁻¹∇_θR = 2θ·∇_H R``. By default Hessians are exact and the loss is ℓ2. ``batch_size``
takes those of mini-batches, as the paper's runs do; ``certified`` takes steps of a size that surely
moves κ the right way, without the loss; ``search`` tries the paper's grid of λ and step sizes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from immunis.core.errors import NumericalError
from immunis.core.jobs import silent
from immunis.core.settings import require, require_least
from immunis.methods.base import Descent, LinearProblem, Method, Solution, best_of, descent
from immunis.models.cut import Cut
from immunis.theory import regularizers as reg
from immunis.theory.spectrum import eigh
from immunis.theory.steps import certified_ill_step, certified_well_factors
from immunis.training.objective import SUPERVISED, Objective

MULTIPLES = (1, 2, 3, 5)
STEP_SIZES = (0.0005, 0.001, 0.005, 0.01)
MOST_ILL = 1e10  # rounding hides what lies beyond this κ_H


@dataclass(frozen=True)
class NetworkSettings:
    """The weights λ_P and λ_H of the regularizers.

    Attributes:
        balance: what a weight that is not given is balanced against at the first step. With
            ``"loss"`` each regularizer pulls as hard as the loss, times its ``multiple``. With
            ``"regularizers"``, as the paper's text says, λ_P is its multiple and R_ill pulls as
            hard as λ_P·R_well, times ``multiple_harmful``. The paper searches multiples 1, 2, 3, 5.
    """

    lambda_primary: float | None = None
    lambda_harmful: float | None = None
    multiple_primary: float = 1.0
    multiple_harmful: float = 1.0
    balance: Literal["loss", "regularizers"] = "loss"

    def __post_init__(self) -> None:
        numbers = ("lambda_primary", "lambda_harmful", "multiple_primary", "multiple_harmful")
        require_least(self, 0, *numbers)

    @property
    def weights(self) -> tuple[float | None, float | None]:
        """λ_P and λ_H; None for those that are balanced by gradient norms."""
        if self.lambda_primary is None and self.balance == "regularizers":
            return self.multiple_primary, self.lambda_harmful
        return self.lambda_primary, self.lambda_harmful


@dataclass(frozen=True)
class Settings(NetworkSettings, Descent):
    """Settings of Algorithm 1.

    Attributes:
        steps: epochs: one step of the full batch, or at most one certified R_ill step.
        optimizer: ``"gd"`` as in Algorithm 1, or ``"adam"`` as in the paper's MNIST runs.
        batch_size: rows of a mini-batch; None for the full batch.
        fraction: share of the way that a certified R_ill step goes to the one that sends σ_k to 0.
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
    terms, steps, rank = _full_batch(problem, settings), settings.steps, problem.moments[1].rank
    size = settings.batch_size
    if size is not None:
        terms = _mini_batch(problem, settings, size)
        steps *= math.ceil(max(problem.primary.samples, problem.harmful.samples) / size)
    weights: list[float] = []

    def gradients(theta: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
        loss_theta, loss_omega, h_primary, h_harmful = terms(theta, omega)
        well = 2 * theta @ reg.r_well_gradient(h_primary)
        ill = 2 * theta @ reg.r_ill_gradient(h_harmful, rank if size is None else None)
        if not weights:
            weights.extend(_balanced(settings, *(float(t.norm()) for t in (loss_theta, well, ill))))
        return loss_theta + weights[0] * well + weights[1] * ill, loss_omega

    path = descent(problem, settings, gradients, problem.random_heads()[0], steps=steps)
    found = best_of(problem, path)
    told = {"lambda_primary": weights[0], "lambda_harmful": weights[1], "step": settings.step}
    return Solution(found.theta, {**found.details, **told})


def _balanced(settings: Settings, loss: float, well: float, ill: float) -> tuple[float, float]:
    """Return λ_P and λ_H, from the lengths of the three gradients at the start."""

    def ratio(one: float, other: float) -> float:
        return one / other if other > 0 else 0.0

    primary, harmful = settings.weights
    if primary is None:
        primary = settings.multiple_primary * ratio(loss, well)
    if harmful is None:
        against = loss if settings.balance == "loss" else primary * well
        harmful = settings.multiple_harmful * ratio(against, ill)
    return primary, harmful


Terms = tuple[Tensor, Tensor, Tensor, Tensor]  # ∇_θL, ∇_ωL, H_P, H_H


def _full_batch(problem: LinearProblem, settings: Settings) -> Callable[..., Terms]:
    """Exact terms of the mean ℓ2 loss, from moments."""
    primary, harmful = problem.moments
    k_p, b_p, k_h, n = primary.k, primary.b, harmful.k, 1
    if settings.paper_scale:
        k_p, b_p, n = problem.primary.matrix(), problem.primary.cross(), problem.primary.samples
        k_h = problem.harmful.matrix()

    def terms(theta: Tensor, omega: Tensor) -> Terms:
        residual = (k_p @ theta @ omega - b_p) * 2 / n
        h_p, h_h = (reg.linear_hessian(theta, k) for k in (k_p, k_h))
        return residual @ omega.T, theta.T @ residual, h_p, h_h

    return terms


def _mini_batch(problem: LinearProblem, settings: Settings, size: int) -> Callable[..., Terms]:
    """Terms of the next mini-batch: cross-entropy or mean squared loss, Hessians of the batch."""
    rows = batches(problem, settings.steps, size)
    scale = 1.0 if settings.paper_scale else problem.scale

    def terms(theta: Tensor, omega: Tensor) -> Terms:
        x_p, y_p, x_h = next(rows)
        x_p, x_h = x_p / scale, x_h / scale
        leaves = theta.detach().requires_grad_(), omega.detach().requires_grad_()
        outputs = x_p @ leaves[0] @ leaves[1]
        if problem.tasks[0].kind == "classification":
            loss = functional.cross_entropy(outputs, y_p)
        else:
            loss = (outputs - y_p).square().sum() / len(x_p)
        loss_theta, loss_omega = torch.autograd.grad(loss, leaves)
        count = 1 if settings.paper_scale else len(x_p)
        h_p, h_h = (reg.feature_hessian(x @ theta) / count for x in (x_p, x_h))
        return loss_theta, loss_omega, h_p, h_h

    return terms


def batches(problem: LinearProblem, epochs: int, size: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield shuffled mini-batches ``(x_P, targets_P, x_H)``; the shorter task is repeated."""
    generator, data = torch.Generator().manual_seed(problem.seed), []
    for task in problem.tasks:
        inputs, labels = task.train.tensors()
        features = inputs if problem.extractor is None else problem.extractor(inputs)
        data.append((features.to(torch.float64), task.targets(labels)))
    (x_p, y_p), (x_h, _) = data
    longest = max(len(x_p), len(x_h))

    def shuffled(rows: int) -> Iterator[Tensor]:
        rounds = range(math.ceil(longest / rows))
        order = torch.cat([torch.randperm(rows, generator=generator) for _ in rounds])
        return order[:longest].split(size)

    for _ in range(epochs):
        for p, h in zip(shuffled(len(x_p)), shuffled(len(x_h)), strict=True):
            yield x_p[p], y_p[p], x_h[h]


def certified(problem: LinearProblem, settings: Settings) -> Iterator[tuple[int, Tensor]]:
    """Yield ``(step, θ)``: certified R_well steps to κ_P = 1; then an R_ill step and R_well again.

    The first R_well steps reach RIR*; only free directions gain more. The loss is left out: the
    primary optimum is the same for every invertible θ.
    """
    primary, harmful = problem.moments

    def whitened(theta: Tensor) -> Tensor:
        """θ after k − 1 certified R_well steps, where κ_P = 1; H_P keeps its eigenvectors."""
        values, vectors = eigh(reg.linear_hessian(theta, primary.k))
        rank, scaling = primary.rank, torch.ones_like(values)
        scaling[:rank] = certified_well_factors(values[:rank], len(theta), rank - 1)
        return theta @ (vectors * scaling) @ vectors.T

    theta = whitened(problem.theta)
    eye = torch.eye(len(theta), dtype=torch.float64)
    yield 0, theta
    for step in range(1, settings.steps + 1):
        before, hessian = problem.rir(theta), reg.linear_hessian(theta, harmful.k)
        eta = certified_ill_step(eigh(hessian)[0][: harmful.rank], settings.fraction)
        theta = whitened(theta @ (eye - 2 * eta * reg.r_ill_gradient(hessian, harmful.rank)))
        problem.progress("certified steps", step / settings.steps)
        if problem.rir(theta) < before * (1 + 1e-6) or problem.kappas(theta)[1] > MOST_ILL:
            return
        yield step, theta


def search(problem: LinearProblem, settings: Settings) -> Solution:
    """Run Algorithm 1 with every step size and multiple of the paper; return the best RIR."""
    grid = list(itertools.product(STEP_SIZES, MULTIPLES, MULTIPLES))
    quiet, found = replace(problem, progress=silent), []
    for index, (step, a, b) in enumerate(grid):
        problem.progress("search", index / len(grid))
        trial = replace(settings, step=step, multiple_primary=a, multiple_harmful=b)
        with contextlib.suppress(NumericalError):  # some corners of the grid diverge
            found.append(algorithm_1(quiet, trial))
    if not found:
        raise NumericalError("every step size and multiple of the search diverged.")
    best = max(found, key=lambda solution: problem.rir(solution.theta))
    tried = {"trials": len(grid), "diverged": len(grid) - len(found)}
    return Solution(best.theta, {**best.details, **tried})


def solve(problem: LinearProblem, settings: Settings) -> Solution:
    """Run the variant of Algorithm 1 that the settings ask for."""
    if settings.certified:
        return best_of(problem, certified(problem, settings))
    return search(problem, settings) if settings.search else algorithm_1(problem, settings)


def objective(settings: NetworkSettings, cut: Cut) -> Objective:
    """Return ``L(D_P) + λ_P·R_well(H_P) + λ_H·R_ill(H_H)`` of batch Hessians ``ZᵀZ`` (eq. 13)."""
    return Objective(
        lambda view: {
            SUPERVISED: view.supervised,
            "r_well": reg.r_well(reg.feature_hessian(view.primary[""], across=True)),
            "r_ill": reg.r_ill(reg.feature_hessian(view.harmful[""], across=True)),
        },
        dict(zip(("r_well", "r_ill"), settings.weights, strict=True)),
        multiples={"r_well": settings.multiple_primary, "r_ill": settings.multiple_harmful},
        base=SUPERVISED if settings.balance == "loss" else "r_well",
        needs={"primary": cut.width},
    )


SUMMARY = "the paper's Algorithm 1: R_well, R_ill and the loss"
DEMO = {"Alg. 1": {"search": True}, "Alg. 1, certified": {"certified": True}}
METHOD = Method(
    "condition", SUMMARY, Settings, solve, NetworkSettings, objective, order=4, demo=DEMO
)
