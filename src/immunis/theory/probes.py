"""Probes in closed form: ridge regression, and ρ, the share of labels that it reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from immunis.core.distributed import summed, total_rows, world
from immunis.core.errors import InputError, NumericalError
from immunis.data.checks import as_tensor, check_size, in_dtype, real
from immunis.theory.gram import Gram
from immunis.theory.regularizers import closed_form
from immunis.theory.spectrum import eigh, relative_cutoff

SOUND = 1e-9  # ridge from which on float64 solves features of any width


def ridge_weights(zz: Tensor, zy: Tensor, damping: float, share: float | None = None) -> Tensor:
    """Return ``W = (Σ_zz + λI)⁻¹Σ_zy`` (D×C).

    Where λ is at most ``share`` of the trace (default: the rank cut-off), or rounding leaves
    ``Σ_zz + λI`` indefinite, the limit λ → 0 is taken: the pseudo-inverse.
    """
    share = relative_cutoff(len(zz)) if share is None else share
    if damping > float(zz.diagonal().sum()) * share:
        eye = torch.eye(len(zz), dtype=zz.dtype, device=zz.device)
        factor, failed = torch.linalg.cholesky_ex(zz + damping * eye)
        if not int(failed):
            return torch.cholesky_solve(zy, factor)
    if not math.isfinite(damping):
        raise NumericalError(f"a damping of {damping:.3g} dwarfs the features; lower the floor.")
    values, vectors = eigh(zz)
    keep = values > values[0] * (share or relative_cutoff(len(zz)))
    basis = vectors[:, keep].to(zz)
    return basis @ ((basis.T @ zy) / values[keep].to(zz)[:, None])


def ridge_probe(gram: Gram, ridge: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return weights (D×C) and bias (C) of ``min ‖Zw + b − Y‖² + λ‖w‖²``.

    ``w = (S_zz + λI)⁻¹S_zy`` from centred scatter, ``λ = ridge·tr(S_zz)/D``; ``b = ȳ − z̄ᵀw``.
    """
    if not 0 < ridge < math.inf:
        raise InputError(f"ridge must be positive and finite, got {ridge}.")
    damping = ridge * float(gram.scatter.diagonal().mean())
    weights = ridge_weights(gram.scatter, gram.cross_scatter, damping, 0.0)
    return weights, gram.target_mean - gram.mean @ weights


@dataclass(frozen=True)
class Ridges:
    """Ridge probes of one set of rows for any penalty, from one decomposition.

    With the smaller of ``ZᵀZ = VΛVᵀ`` and ``ZZᵀ = UΛUᵀ``, both of centred rows, the weights are
    ``V(Λ+λI)⁻¹VᵀZᵀY = ZᵀU(Λ+λI)⁻¹UᵀY``, with ``λ = ridge·tr(ZᵀZ)/D`` as in ``ridge_probe``.
    """

    into: Tensor  # V or ZᵀU
    aims: Tensor  # VᵀZᵀY or UᵀY
    values: Tensor  # Λ
    explained: Tensor  # what each direction could explain of Y: ‖vᵀZᵀY‖²
    mean: Tensor
    target_mean: Tensor
    spread: float  # ‖Y‖²
    samples: int

    def probe(self, ridge: float) -> tuple[Tensor, Tensor]:
        """Return the weights (D×C) and bias (C) of ``ridge_probe``; zeros if nothing varies."""
        damped = self.values + ridge * self._size
        weights = self.into @ (self.aims / torch.where(damped > 0, damped, math.inf)[:, None])
        return weights, self.target_mean - self.mean @ weights

    def least_error(self, ridges: Sequence[float]) -> float:
        """Return the ridge of least generalised cross-validation error, ``RSS/(1 − df/n)²``.

        See Golub, Heath and Wahba (1979).
        """
        errors = {}
        for ridge in ridges:
            shrink = 1 / (self.values + ridge * self._size)
            kept = self.values * shrink
            residual = self.spread - float((self.explained * (2 - kept) * shrink).sum())
            free = 1 - (1 + float(kept.sum())) / self.samples
            errors[ridge] = residual / free**2 if free > 0 else math.inf
        return min(errors, key=lambda ridge: errors[ridge])

    @property
    def _size(self) -> float:
        return float(self.values.sum()) / len(self.mean)


def ridges_of(features: Tensor, targets: Tensor) -> Ridges:
    """Return the ridge probes of features (n×D) and targets (n×C), both in float64."""
    mean, target_mean = features.mean(0), targets.mean(0)
    z, y = features - mean, targets - target_mean
    few = len(z) < z.shape[1]
    values, basis = eigh(z @ z.T if few else z.T @ z)
    values = values.clamp_min(0.0)
    into, aims = (z.T @ basis, basis.T @ y) if few else (basis, basis.T @ (z.T @ y))
    explained = aims.square().sum(1) * (values if few else 1.0)
    spread = float(y.square().sum())
    return Ridges(into, aims, values, explained, mean, target_mean, spread, len(z))


def rho(
    features: Tensor,
    targets: Tensor,
    ridge: float = 1e-3,
    floor: float = 0.0,
    *,
    across: bool = False,
) -> Tensor:
    """Return the share of the targets' variance that a ridge probe explains, in closed form.

    ``ρ(Z,Y) = tr(Σ_zyᵀ(Σ_zz+λI)⁻¹Σ_zy)/tr(Σ_yy)`` with ``λ = ridge·tr(Σ_zz)/D + floor``, and
    ``∇_Z ρ = (2/(n·tr Σ_yy))·((Y − ZW)Wᵀ − (ridge/D)·‖W‖²_F·Z)``; no gradient flows to the targets.
    Between 0 (no linear probe sees the labels) and 1. Invariant to every invertible linear map of
    the features as λ → 0, so whitening or preconditioning gains an attacker nothing. Where λ is too
    small to matter in float64, the pseudo-inverse is used.

    Features are (n, D), targets (n, C), one-hot for classes. n should exceed D, or ρ nears 1 for
    want of samples. ``floor`` keeps the solve stable when features collapse. With a floor and a
    ``ridge`` of 1e-9 or more, nothing is read back from an accelerator, and features that hold NaN
    give NaN. ``across`` sums moments over the processes of a distributed run.
    """
    features, targets = as_tensor(features, "features"), as_tensor(targets, "targets")
    _check_shapes(features, targets)
    features = real(features)
    sound = ridge >= SOUND and floor > 0  # the solve cannot fail, so nothing is read back
    z, y, n, zz, zy, yy = _sums(features, targets, across, check=not sound)
    zz, zy, variance = zz / n, zy / n, yy / n
    if sound:
        damping = ridge * zz.diagonal().mean() + floor
        eye = torch.eye(len(zz), dtype=zz.dtype, device=zz.device)
        weights = torch.cholesky_solve(zy, torch.linalg.cholesky_ex(zz + damping * eye)[0])
    else:
        _check_varied(float(variance))
        weights = ridge_weights(zz, zy, _damping(zz, ridge, floor))
    value = (zy * weights).sum() / variance
    shrink = ridge / z.shape[1] * weights.square().sum()  # the derivative of λ itself
    gradient = 2 / (n * variance) * ((y - z @ weights) @ weights.T - shrink * z)
    gradient = gradient * (world() if across else 1)  # see immunis.core.distributed
    if sound:
        return closed_form(features, value.to(features), gradient.to(features))
    gradient = in_dtype(gradient, features.dtype, "the gradient of ρ")
    return closed_form(features, value.to(features), gradient)


def rho_of_gram(gram: Gram, ridge: float = 1e-3) -> float:
    """Return ρ from streamed moments, for data sets that do not fit in memory."""
    zz, zy = gram.scatter / gram.samples, gram.cross_scatter / gram.samples
    variance = float(gram.target_scatter.trace()) / gram.samples
    _check_varied(variance)
    weights = ridge_weights(zz, zy, _damping(zz, ridge))
    return float((zy * weights).sum()) / variance


def _check_shapes(features: Tensor, targets: Tensor) -> None:
    if features.ndim != 2 or targets.ndim != 2 or not len(features) == len(targets) >= 1:
        raise InputError(
            f"ρ needs features (n, D) and targets (n, C), n at least 1; got "
            f"{tuple(features.shape)} and {tuple(targets.shape)}. Encode class labels with "
            "Task.targets."
        )


def _check_varied(variance: float) -> None:
    if not variance > 0:
        raise InputError(
            "the labels are constant, so no share of them can be explained; every batch needs at "
            "least two classes (or two target values)."
        )


def _damping(zz: Tensor, ridge: float, floor: float = 0.0) -> float:
    """Return ``λ = ridge·tr(Σ_zz)/D + floor``."""
    if not (0 <= ridge < math.inf and floor >= 0):
        raise InputError(f"ridge and floor must be finite and at least 0, got {ridge} and {floor}.")
    return ridge * float(zz.diagonal().sum()) / len(zz) + floor


def _sums(
    features: Tensor, targets: Tensor, across: bool, check: bool
) -> tuple[Tensor, Tensor, int, Tensor, Tensor, Tensor]:
    """Return Z and Y about their means, n, ZᵀZ, ZᵀY and ‖Y‖², of all processes if ``across``."""
    total = summed if across else lambda part: part
    n, centred = total_rows(features) if across else len(features), []
    for values, what in ((features, "features"), (targets, "targets")):
        rows = real(values).detach().to(features.device, torch.float64)
        if check:  # alike in all processes
            check_size(total(rows.abs().max()), what, error=NumericalError)
        moved = rows - total(rows[0]) / (world() if across else 1)  # constants become exactly zero
        centred.append(moved - total(moved.sum(0)) / n)
    z, y = centred
    return z, y, n, total(z.T @ z), total(z.T @ y), total(y.square().sum())
