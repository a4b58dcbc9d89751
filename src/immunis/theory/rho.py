"""ρ: what a linear probe reads of labels from features; value and closed-form gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from immunis.core.distributed import summed, total_rows, world
from immunis.core.errors import InputError
from immunis.data.checks import as_tensor
from immunis.theory.gram import Gram
from immunis.theory.regularizers import closed_form
from immunis.theory.ridge import ridge_weights
from immunis.theory.scale import answer, carry, exponent_of, real, unit


def _damping(zz: Tensor, variance: float, ridge: float, floor: float) -> float:
    """``λ = ridge·tr(Σ_zz)/D + floor``, for targets that vary."""
    if not (0 <= ridge < math.inf and floor >= 0):
        raise InputError(f"ridge and floor must be finite and at least 0, got {ridge} and {floor}.")
    if not variance > 0:
        raise InputError(
            "the labels are constant, so no share of them can be explained; ρ needs at least "
            "two classes (or two target values) in every batch."
        )
    return ridge * float(zz.diagonal().sum()) / len(zz) + floor


def _rho(
    features: Tensor, targets: Tensor, ridge: float, floor: float, across: bool = False
) -> tuple[Tensor, Tensor]:
    features, targets = as_tensor(features, "features"), as_tensor(targets, "targets")
    if features.ndim != 2 or targets.ndim != 2 or len(features) != len(targets):
        raise InputError(
            f"ρ needs features (n, D) and targets (n, C); got {tuple(features.shape)} and "
            f"{tuple(targets.shape)}. Encode class labels with Task.targets or one_hot."
        )
    features = real(features)
    z, y, n, (exponent, _) = _shared(features, targets, across)  # ρ has no unit, its gradient one
    total, d = _total(across), z.shape[1]
    floor = float(carry(torch.tensor(floor, dtype=torch.float64), -2 * exponent))
    zy = total(z.T @ y) / n
    variance = float(total(y.square().sum()) / n)
    zz = total(z.T @ z) / n
    weights = ridge_weights(zz, zy, _damping(zz, variance, ridge, floor))
    shrink = ridge / d * weights.square().sum()
    scale = 2 / (n * variance) * (world() if across else 1)  # see immunis.processes
    gradient = scale * ((y - z @ weights) @ weights.T - shrink * z)
    gradient = answer(gradient, -exponent, features.dtype, "the gradient of ρ")
    return ((zy * weights).sum() / variance).to(features), gradient.to(features)


def _total(across: bool) -> Callable[[Tensor], Tensor]:
    """A sum over all processes, or over this one alone."""
    return summed if across else lambda values: values


def _shared(
    features: Tensor, targets: Tensor, across: bool
) -> tuple[Tensor, Tensor, int, tuple[int, int]]:
    """Both at unit scale about their means, the number of rows in all, and their units."""
    z, e = _shared_unit(features, across)
    y, f = _shared_unit(targets.to(z.device), across)
    n = total_rows(z) if across else len(z)
    return _shared_centre(z, n, across), _shared_centre(y, n, across), n, (e, f)


def _shared_unit(values: Tensor, across: bool) -> tuple[Tensor, int]:
    """Values at unit scale in float64, by the same power of two in every process."""
    values = real(values).detach().to(torch.float64)
    exponent = exponent_of(_total(across)(values.abs().max()))
    return carry(values, -exponent), exponent


def _shared_centre(values: Tensor, n: int, across: bool) -> Tensor:
    """Values about their mean over all processes; a constant column becomes exactly zero."""
    total = _total(across)
    moved = values - total(values[0]) / (world() if across else 1)
    return moved - total(moved.sum(0)) / n


def recalled(features: Tensor, targets: Tensor, ridge: float = 0.03) -> Tensor:
    """Targets Y beside what a ridge probe of other features says of them, ``[Y, sŶ]``.

    ``Ŷ = Z(Σ_zz+λI)⁻¹Σ_zy`` about the means, with ``λ = ridge·tr(Σ_zz)/D``, over the rows of all
    processes, and s such that Y and sŶ vary alike: ρ, and ν, of both together is the mean of
    theirs. Labels of few rows are mostly what no feature explains; Ŷ is what these features do.
    The probe has seen the rows it answers for, so that Ŷ follows a row's own label by its leverage,
    D/n on average or less: with no more rows than features Ŷ is Y again.

    Args:
        features: (n, D), of the original model, say; n should be several times D.
        targets: (n, C) real matrix, one-hot for classes.
        ridge: damping relative to the mean eigenvalue of Σ_zz, which lowers the leverage.

    Returns:
        An (n, 2C) matrix in float64; the second half is zero where features do not vary.
    """
    z, y, _, (_, exponent) = _shared(features, targets, True)
    variance = float(summed(y.square().sum()))
    zz = summed(z.T @ z)
    said = z @ ridge_weights(zz, summed(z.T @ y), _damping(zz, variance, ridge, 0.0))
    size = float(summed(said.square().sum()))
    scale = math.sqrt(variance / size) if size > 0 else 0.0
    return torch.cat([targets.to(z), carry(scale * said, exponent)], 1)


def rho(
    features: Tensor,
    targets: Tensor,
    ridge: float = 1e-3,
    floor: float = 0.0,
    *,
    across: bool = False,
) -> Tensor:
    """Share of the targets' variance that a ridge probe explains, differentiable in features.

    ``ρ(Z,Y) = tr(Σ_zyᵀ(Σ_zz+λI)⁻¹Σ_zy)/tr(Σ_yy)`` with ``λ = ridge·tr(Σ_zz)/D + floor``.
    Between 0 (no linear probe sees the labels) and 1; invariant to every invertible linear
    map of the features as λ → 0, so whitening or preconditioning gains an attacker nothing.
    With λ = 0, or too small to matter in float64, the pseudo-inverse is used.

    Args:
        features: (n, D); n should exceed D, or ρ nears 1 for want of samples.
        targets: (n, C) real matrix, one-hot for classes; no gradient flows to it.
        ridge: damping relative to the mean eigenvalue of Σ_zz.
        floor: absolute damping, which keeps the solve stable when features collapse.
        across: moments are summed over the processes of a distributed run.
    """
    return closed_form(real(features), *_rho(features, targets, ridge, floor, across))


def rho_of_gram(gram: Gram, ridge: float = 1e-3, floor: float = 0.0) -> float:
    """ρ from streamed moments, for data sets that do not fit in memory."""
    (zz, e), (zy, f) = unit(gram.scatter / gram.samples), unit(gram.cross_scatter / gram.samples)
    variance, g = unit(gram.target_scatter.trace() / gram.samples)
    floor = float(carry(torch.tensor(floor, dtype=torch.float64), -e))
    weights = ridge_weights(zz, zy, _damping(zz, float(variance), ridge, floor))
    return float(carry((zy * weights).sum() / variance, 2 * f - e - g))
