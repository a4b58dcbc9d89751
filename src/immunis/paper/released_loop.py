"""The paper's training loop as its released code runs it, with the baselines that share it.

The loop draws mini-batches of paired rows, steps with Adam, and multiplies the gradients of the
regularizers by an inverse Gram matrix. It differs from Algorithm 1 as printed in three ways, kept
on purpose (``methods/condition.py`` is the corrected version):

* the inverse multiplies the outputs of θ, not its inputs;
* a batch has fewer rows than features, so σ_min in R_ill is the noise floor 10⁻⁶ and drops out:
  ``R_ill = 2D/‖S‖²_F``, which falls as the *norm* of the harmful features grows;
* k in R_ill is D, not the rank.

A batch of b rows has a Hessian of rank b. Every gradient therefore follows from the b×b matrix
``ZZᵀ``, without a D×D decomposition, which makes a sweep over MNIST affordable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_type_hints

import torch
from torch import Tensor

from immunis.core.errors import InputError, NumericalError
from immunis.core.settings import check, require_least
from immunis.theory.spectrum import eigh

Objective = Literal["algorithm_1", "r_ill", "opt_kappa", "opt_log_kappa"]


@dataclass(frozen=True)
class Settings:
    """Settings of one run; λ weighs a regularizer, a ridge is added to the Gram to be inverted.

    The objective is the three terms of Algorithm 1, λ_H·R_ill alone, ``κ(H_P) − κ(H_H)``, or the
    same of log κ, which the released function for κ returns. The loss is the primary task's.
    """

    objective: Objective = "algorithm_1"
    step: float = 0.005
    lambda_primary: float = 100.0
    lambda_harmful: float = 1e7
    ridge_primary: float = 1.0
    ridge_harmful: float = 1.0
    loss: Literal["squared", "logistic"] = "squared"
    batch: int = 64  # an incomplete last batch is dropped

    def __post_init__(self) -> None:
        """Check types and ranges."""
        check(vars(self), get_type_hints(Settings), "the released loop")
        require_least(self, 0, "step", "ridge_primary", "ridge_harmful", above=True)
        require_least(self, 0, "lambda_primary", "lambda_harmful")
        require_least(self, 2, "batch")


def ill_pull(z: Tensor) -> Tensor:
    """``∂R_ill(ZᵀZ)/∂Z`` with σ_min = 0 and k = D: ``−(2/D)·R_ill²·ZZᵀZ``, R_ill = 2D/‖ZZᵀ‖²."""
    small = z @ z.T
    value = 2 * z.shape[1] / small.double().square().sum()
    return ((-2 / z.shape[1] * value**2) * small.double()).to(z) @ z


def spectral_pull(z: Tensor, objective: Objective) -> Tensor:
    """Return the gradient at Z of what an objective makes of ``ZᵀZ``, by the n×n matrix ``ZZᵀ``.

    With its eigenvalues σ₁ ≥ … ≥ σ_n and eigenvectors a₁, …, a_n:

    * ``algorithm_1``, R_well: ``(2σ₁a₁a₁ᵀ − (2/D)·ZZᵀ)·Z``;
    * ``opt_kappa``, κ over the batch's n non-zero σ: ``2(a₁a₁ᵀ/σ_n − (σ₁/σ_n²)·a_n a_nᵀ)·Z``;
    * ``opt_log_kappa``, log κ as released, σ_min a floor that does not move: ``2a₁a₁ᵀZ/σ₁``.
    """
    small = z @ z.T
    values, vectors = eigh(small)
    top, low = (torch.outer(a, a) for a in (vectors[:, 0], vectors[:, -1]))
    if objective == "algorithm_1":
        pull = 2 * values[0] * top - 2 / z.shape[1] * small
    elif objective == "opt_kappa":
        floor = values[-1].clamp(min=float(values[0]) * torch.finfo(z.dtype).eps)
        pull = 2 * (top / floor - values[0] / floor**2 * low)
    else:
        pull = 2 / values[0] * top
    return pull.to(z) @ z


def printed_inverse(pull: Tensor, x: Tensor, ridge: float) -> Tensor:
    """``(XᵀX + λI)⁻¹`` on the outputs of each row of ``pull``, by a b×b solve.

    ``(G − G·Xᵀ(XXᵀ + λI)⁻¹X)/λ``: the weight's gradient ``Gᵀ X`` multiplied from the left.
    """
    small = x @ x.T
    small.diagonal().add_(ridge)
    return (pull - torch.linalg.solve(small, x @ pull.T).T @ x) / ridge


def run(
    theta: Tensor,
    primary: tuple[Tensor, Tensor],
    harmful: Tensor,
    settings: Settings,
    marks: Sequence[int],
    seed: int = 0,
) -> Iterator[tuple[int, Tensor]]:
    """Train θ and yield ``(epoch, θ)`` in float64 after each epoch in ``marks``, which rise.

    Features are ``xᵀθ``, and θ₀ (D×D) decides the dtype. ``primary`` holds inputs (n×D) and
    targets (n), 0 and 1 for the logistic loss; ``harmful`` holds inputs (n×D), paired with them
    row by row. The seed decides the first weights of the head and the order of rows.

    Raises:
        InputError: if the rows do not pair up or do not fill one batch.
        NumericalError: if θ is no longer finite.
    """
    x_p, y_p = primary[0].to(theta), primary[1].to(theta)
    x_h, n = harmful.to(theta), len(primary[0])
    if len(x_h) != n or len(y_p) != n or n < settings.batch:
        raise InputError(
            f"{n} primary rows, {len(y_p)} targets and {len(x_h)} harmful rows: the loop pairs "
            f"them one to one and needs at least one batch of {settings.batch}."
        )
    generator = torch.Generator().manual_seed(seed)
    weight = theta.T.contiguous().clone()  # out×in, as a linear layer holds it
    omega = torch.randn(len(theta), generator=generator, dtype=torch.float64).to(theta)
    optimizer = torch.optim.Adam([weight, omega], lr=settings.step, fused=True)
    for epoch in range(1, marks[-1] + 1):
        order = torch.randperm(n, generator=generator)
        for start in range(0, n - settings.batch + 1, settings.batch):
            rows = order[start : start + settings.batch]
            _step(weight, omega, x_p[rows], y_p[rows], x_h[rows], settings)
            optimizer.step()
        if epoch in marks:
            if not bool(torch.isfinite(weight).all()):
                raise NumericalError(f"θ is not finite after {epoch} epochs; lower the step size.")
            yield epoch, weight.T.double().clone()  # the loop goes on changing its own


def _step(
    weight: Tensor, omega: Tensor, x_p: Tensor, y_p: Tensor, x_h: Tensor, settings: Settings
) -> None:
    """Put the gradients of one batch where the optimizer looks for them."""
    z_p, z_h = x_p @ weight.T, x_h @ weight.T
    omega.grad = None
    if settings.objective in ("opt_kappa", "opt_log_kappa"):
        left_p = spectral_pull(z_p, settings.objective)
        left_h = -spectral_pull(z_h, settings.objective)
    else:
        ill = printed_inverse(ill_pull(z_h), x_h, settings.ridge_harmful)
        left_h = settings.lambda_harmful * ill
        if settings.objective == "r_ill":
            weight.grad = left_h.T @ x_h
            return
        outputs, logistic = z_p @ omega, settings.loss == "logistic"
        error = torch.sigmoid(outputs) - y_p if logistic else 2 * (outputs - y_p)
        residual = error / len(y_p)
        omega.grad = z_p.T @ residual
        well = settings.lambda_primary * spectral_pull(z_p, "algorithm_1")
        left_p = printed_inverse(well, x_p, settings.ridge_primary)
        left_p += torch.outer(residual, omega)
    weight.grad = torch.cat([left_p, left_h]).T @ torch.cat([x_p, x_h])
