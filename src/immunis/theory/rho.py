"""ρ: the share of labels that a linear probe reads from features."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from immunis.core.distributed import summed, total_rows, world
from immunis.core.errors import InputError, NumericalError
from immunis.data.checks import as_tensor
from immunis.theory.gram import Gram
from immunis.theory.regularizers import closed_form
from immunis.theory.ridge import ridge_weights
from immunis.theory.scale import check_size, in_dtype, real


def _total(across: bool) -> Callable[[Tensor], Tensor]:
    """A sum over all processes, or over this one alone."""
    return summed if across else lambda part: part


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


def _centred(values: Tensor, device: torch.device, n: int, across: bool, what: str) -> Tensor:
    """Rows in float64 about the mean over all processes; a constant column becomes exactly zero."""
    total = _total(across)
    rows = real(values).detach().to(device, torch.float64)
    check_size(total(rows.abs().max()), what, error=NumericalError)  # alike in all processes
    moved = rows - total(rows[0]) / (world() if across else 1)
    return moved - total(moved.sum(0)) / n


def _rho(
    features: Tensor, targets: Tensor, ridge: float, floor: float, across: bool
) -> tuple[Tensor, Tensor]:
    """ρ and ``∇_Z ρ = (2/(n·tr Σ_yy))·((Y − ZW)Wᵀ − (ridge/D)·‖W‖²_F·Z)``."""
    total = _total(across)
    n = total_rows(features) if across else len(features)
    z = _centred(features, features.device, n, across, "features")
    y = _centred(targets, features.device, n, across, "targets")
    zz, zy, variance = total(z.T @ z) / n, total(z.T @ y) / n, float(total(y.square().sum()) / n)
    weights = ridge_weights(zz, zy, _damping(zz, variance, ridge, floor))
    value = (zy * weights).sum() / variance
    shrink = ridge / z.shape[1] * weights.square().sum()  # the derivative of λ itself
    gradient = 2 / (n * variance) * ((y - z @ weights) @ weights.T - shrink * z)
    return value, gradient * (world() if across else 1)  # see immunis.core.distributed


def rho(
    features: Tensor,
    targets: Tensor,
    ridge: float = 1e-3,
    floor: float = 0.0,
    *,
    across: bool = False,
) -> Tensor:
    """Return the share of the targets' variance that a ridge probe explains.

    ``ρ(Z,Y) = tr(Σ_zyᵀ(Σ_zz+λI)⁻¹Σ_zy)/tr(Σ_yy)`` with ``λ = ridge·tr(Σ_zz)/D + floor``.
    Between 0 (no linear probe sees the labels) and 1; invariant to every invertible linear
    map of the features as λ → 0, so whitening or preconditioning gains an attacker nothing.
    Where λ is 0, or too small to matter in float64, the pseudo-inverse is used. Differentiable
    in the features, in closed form.

    Args:
        features: (n, D); n should exceed D, or ρ nears 1 for want of samples.
        targets: (n, C) real matrix, one-hot for classes; no gradient flows to it.
        ridge: damping relative to the mean eigenvalue of Σ_zz.
        floor: absolute damping, which keeps the solve stable when features collapse.
        across: whether to sum moments over the processes of a distributed run.
    """
    features, targets = as_tensor(features, "features"), as_tensor(targets, "targets")
    if features.ndim != 2 or targets.ndim != 2 or len(features) != len(targets):
        raise InputError(
            f"ρ needs features (n, D) and targets (n, C); got {tuple(features.shape)} and "
            f"{tuple(targets.shape)}. Encode class labels with Task.targets or one_hot."
        )
    features = real(features)
    value, gradient = _rho(features, targets, ridge, floor, across)
    gradient = in_dtype(gradient, features.dtype, "the gradient of ρ")
    return closed_form(features, value.to(features), gradient)


def rho_of_gram(gram: Gram, ridge: float = 1e-3, floor: float = 0.0) -> float:
    """Return ρ from streamed moments, for data sets that do not fit in memory."""
    zz, zy = gram.scatter / gram.samples, gram.cross_scatter / gram.samples
    variance = float(gram.target_scatter.trace()) / gram.samples
    weights = ridge_weights(zz, zy, _damping(zz, variance, ridge, floor))
    return float((zy * weights).sum()) / variance


def recalled(features: Tensor, targets: Tensor, ridge: float = 0.03) -> Tensor:
    """Return targets Y beside what a ridge probe of other features says of them, ``[Y, sŶ]``.

    ``Ŷ = Z(Σ_zz+λI)⁻¹Σ_zy`` about the means, with ``λ = ridge·tr(Σ_zz)/D``, over the rows of all
    processes, and s such that Y and sŶ vary alike: ρ, and ν, of both together is the mean of
    theirs. Labels of few rows are mostly what no feature explains; Ŷ is what these features do.
    The probe has seen the rows it answers for, so Ŷ follows a row's own label by its leverage,
    D/n on average or less: with no more rows than features Ŷ is Y again.

    Args:
        features: (n, D), of the original model, say; n should be several times D.
        targets: (n, C) real matrix, one-hot for classes.
        ridge: damping relative to the mean eigenvalue of Σ_zz, which lowers the leverage.

    Returns:
        An (n, 2C) matrix in float64; the second half is zero where features do not vary.
    """
    n = total_rows(features)
    z = _centred(features, features.device, n, True, "features")
    y = _centred(targets, features.device, n, True, "targets")
    zz, variance = summed(z.T @ z), float(summed(y.square().sum()))
    said = z @ ridge_weights(zz, summed(z.T @ y), _damping(zz, variance, ridge, 0.0))
    size = float(summed(said.square().sum()))
    scale = math.sqrt(variance / size) if size > 0 else 0.0
    return torch.cat([targets.to(z), scale * said], 1)
