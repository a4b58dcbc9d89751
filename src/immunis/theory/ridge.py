"""Ridge regression and least squares in closed form: one penalty, or a path of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from immunis.core.errors import InputError, NumericalError
from immunis.theory.gram import Gram
from immunis.theory.spectrum import eigh, relative_cutoff


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


def ridge_path(
    features: Tensor, targets: Tensor, at: Tensor, ridges: Sequence[float]
) -> list[Tensor]:
    """Return what ``ridge_probe`` answers ``at`` new features (m×D), for each of ``ridges``.

    One decomposition, of the smaller of ``ZᵀZ`` and ``ZZᵀ``, serves all penalties.
    """
    mean, target_mean = features.mean(0), targets.mean(0)
    z, y, new = features - mean, targets - target_mean, at - mean
    if len(z) < z.shape[1]:
        values, basis = eigh(z @ z.T)
        left, right = new @ z.T @ basis, basis.T @ y
    else:
        values, basis = eigh(z.T @ z)
        left, right = new @ basis, basis.T @ (z.T @ y)
    size = float(values.sum()) / z.shape[1]
    if size <= 0:  # nothing varies
        return [target_mean.expand(len(at), -1) for _ in ridges]
    values = values.clamp_min(0.0)[:, None]
    return [left @ (right / (values + ridge * size)) + target_mean for ridge in ridges]


def cross_validated_ridge(gram: Gram, ridges: Sequence[float]) -> float:
    """Return the ridge of least generalised cross-validation error, ``RSS/(1 − df/n)²``.

    See Golub, Heath and Wahba (1979).
    """
    spread = float(gram.target_scatter.diagonal().sum())
    values, vectors = eigh(gram.scatter)
    values = values.clamp(min=0)
    aims = (vectors.T @ gram.cross_scatter).square().sum(1)
    errors = {}
    for ridge in ridges:
        shrink = 1 / (values + ridge * values.mean())
        residual = spread - float((aims * (2 - values * shrink) * shrink).sum())
        free = 1 - (1 + float((values * shrink).sum())) / gram.samples
        errors[ridge] = residual / free**2 if free > 0 else math.inf
    return min(errors, key=lambda ridge: errors[ridge])
