"""ρ and ν: the share of labels that a linear probe, or neighbours, read from features."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from immunis.core.distributed import summed, total_rows, world
from immunis.core.errors import InputError, NumericalError
from immunis.data.checks import as_tensor
from immunis.theory.gram import Gram
from immunis.theory.regularizers import closed_form
from immunis.theory.ridge import ridge_weights
from immunis.theory.scale import check_size, in_dtype, real

SHARPNESS = (5.0, 20.0)  # a cosine of 0.5 to a row counts 12 and 22,000 times one of 0


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
    want of samples. ``floor`` keeps the solve stable when features collapse. ``across`` sums
    moments over the processes of a distributed run.
    """
    features, targets = as_tensor(features, "features"), as_tensor(targets, "targets")
    _check_shapes("ρ", features, targets)
    features = real(features)
    z, y, n, zz, zy, yy = _sums(features, targets, across)
    zz, zy, variance = zz / n, zy / n, yy / n
    weights = ridge_weights(zz, zy, _damping(zz, variance, ridge, floor))
    value = (zy * weights).sum() / variance
    shrink = ridge / z.shape[1] * weights.square().sum()  # the derivative of λ itself
    gradient = 2 / (n * variance) * ((y - z @ weights) @ weights.T - shrink * z)
    gradient = gradient * (world() if across else 1)  # see immunis.core.distributed
    gradient = in_dtype(gradient, features.dtype, "the gradient of ρ")
    return closed_form(features, value.to(features), gradient)


def rho_of_gram(gram: Gram, ridge: float = 1e-3, floor: float = 0.0) -> float:
    """Return ρ from streamed moments, for data sets that do not fit in memory."""
    zz, zy = gram.scatter / gram.samples, gram.cross_scatter / gram.samples
    variance = float(gram.target_scatter.trace()) / gram.samples
    weights = ridge_weights(zz, zy, _damping(zz, variance, ridge, floor))
    return float((zy * weights).sum()) / variance


def recalled(features: Tensor, targets: Tensor, ridge: float = 0.03) -> Tensor:
    """Return targets Y beside what a ridge probe of other features says of them: ``[Y, sŶ]``.

    ``Ŷ = Z(Σ_zz+λI)⁻¹Σ_zy`` about the means, with ``λ = ridge·tr(Σ_zz)/D``, over the rows of all
    processes, and s such that Y and sŶ vary alike: ρ, and ν, of both is the mean of theirs. The
    probe has seen the rows it answers for. So Ŷ follows a row's own label by its leverage, about
    D/n, which ``ridge`` lowers: with no more rows than features Ŷ is Y again. Ŷ is zero where
    features do not vary.
    """
    z, _, _, zz, zy, variance = _sums(features, targets, across=True)
    said = z @ ridge_weights(zz, zy, _damping(zz, variance, ridge, 0.0))
    size = float(summed(said.square().sum()))
    scale = math.sqrt(variance / size) if size > 0 else 0.0
    return torch.cat([targets.to(z), scale * said], 1)


def nu(features: Tensor, targets: Tensor, sharpness: Sequence[float] = SHARPNESS) -> Tensor:
    """Return the share of the targets' variance that a row's neighbours explain, differentiably.

    ``ν(Z,Y) = Σᵢ ỹᵢ·ŷᵢ / Σᵢ ‖ỹᵢ‖²`` with ``ŷᵢ = Σ_{j≠i} pᵢⱼỹⱼ``, ``pᵢⱼ ∝ exp(s·zᵢ·zⱼ/D)`` and ỹ the
    targets about their mean (Nadaraya and Watson's smoother, each row left out of its own answer),
    the mean over the sharpnesses s. 1 where all that is near a row has its targets, −1/(n−1) where
    all rows are alike, and less where neighbours differ more often than by chance. ν does not
    explain random labels for any D, where ρ of n rows explains D/n of them.

    Rows of the features (n, D) have length √D or less (``feature_maps.even``), so that zᵢ·zⱼ/D is
    their cosine. No gradient flows to the targets (n, C). The larger s, the fewer neighbours count.
    """
    _check_shapes("ν", features, targets, least=2)
    if not sharpness or not all(s > 0 for s in sharpness):
        raise InputError(f"ν needs one sharpness or more, above 0; got {sharpness}.")
    rows, y = features.double(), targets.detach().to(features.device, torch.float64)
    y = y - y.mean(0)
    variance = y.square().sum()
    if not bool((rows.detach().sum() + variance).isfinite()):
        raise NumericalError("ν: features or targets hold NaN or infinities; lower the rate.")
    _check_varied(float(variance))
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    cosines = (rows @ rows.mT / max(rows.shape[1], 1)).masked_fill(itself, -torch.inf)
    weights = torch.stack([(s * cosines).softmax(1) for s in sharpness]).mean(0)
    return ((weights @ y) * y).sum() / variance


def _check_shapes(what: str, features: Tensor, targets: Tensor, least: int = 1) -> None:
    if features.ndim != 2 or targets.ndim != 2 or not len(features) == len(targets) >= least:
        raise InputError(
            f"{what} needs features (n, D) and targets (n, C), n at least {least}; got "
            f"{tuple(features.shape)} and {tuple(targets.shape)}. Encode class labels with "
            "Task.targets or one_hot."
        )


def _check_varied(variance: float) -> None:
    if not variance > 0:
        raise InputError(
            "the labels are constant, so no share of them can be explained; every batch needs at "
            "least two classes (or two target values)."
        )


def _damping(zz: Tensor, variance: float, ridge: float, floor: float) -> float:
    """Return ``λ = ridge·tr(Σ_zz)/D + floor``, for targets that vary."""
    if not (0 <= ridge < math.inf and floor >= 0):
        raise InputError(f"ridge and floor must be finite and at least 0, got {ridge} and {floor}.")
    _check_varied(variance)
    return ridge * float(zz.diagonal().sum()) / len(zz) + floor


def _sums(
    features: Tensor, targets: Tensor, across: bool
) -> tuple[Tensor, Tensor, int, Tensor, Tensor, float]:
    """Return Z and Y about their means, n, ZᵀZ, ZᵀY and ‖Y‖², of all processes if ``across``."""
    total = summed if across else lambda part: part
    n, centred = total_rows(features) if across else len(features), []
    for values, what in ((features, "features"), (targets, "targets")):
        rows = real(values).detach().to(features.device, torch.float64)
        check_size(total(rows.abs().max()), what, error=NumericalError)  # alike in all processes
        moved = rows - total(rows[0]) / (world() if across else 1)  # constants become exactly zero
        centred.append(moved - total(moved.sum(0)) / n)
    z, y = centred
    return z, y, n, total(z.T @ z), total(z.T @ y), float(total(y.square().sum()))
