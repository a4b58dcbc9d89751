"""Maps that show a linear probe more of the features: white, of one length, random."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from immunis.core.errors import NumericalError
from immunis.theory.spectrum import relative_cutoff


def fourier(
    features: Tensor, count: int, gamma: float, generator: torch.Generator | None = None
) -> Tensor:
    """Return ``cos(zᵀω + b)`` for ``count`` draws of ω ~ N(0, 2γI) and a phase b.

    Ridge regression on them approximates the kernel ``exp(−γ‖z − z'‖²)`` (Rahimi and Recht 2007).
    """
    z = _real(features)
    device = z.device if generator is None else generator.device
    draws = torch.randn(z.shape[1], count, generator=generator, device=device)
    frequencies = math.sqrt(2 * gamma) * draws
    phases = 2 * math.pi * torch.rand(count, generator=generator, device=device)
    return torch.cos(z @ frequencies.to(z) + phases.to(z))


def white(features: Tensor, ridge: float = 1e-5, floor: float = 0.0) -> Tensor:
    """Return features centred and white over the batch: ``(z − z̄)L⁻ᵀ`` with ``LLᵀ = Σ + λI``.

    ``λ = ridge·tr(Σ)/D + floor``, at least what rounding hides, in float64. A direction drowns the
    others only if it is 1/ridge times as large. Constant features become zero.
    """
    z = features.to(torch.float64)
    z = z - z.mean(0)
    covariance = z.mT @ z / len(z)
    size = covariance.diagonal().sum()
    damping = max(ridge / len(covariance), 10 * relative_cutoff(len(covariance))) * size + floor
    damping = torch.where(size > 0, damping, 1.0)  # constant features
    eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    factor, failed = torch.linalg.cholesky_ex(covariance + damping * eye)
    if int(failed):
        raise NumericalError(
            "the features hold NaN or infinities: an earlier step diverged, or the data does. In "
            "training, lower the step size or the weights of the regularizers."
        )
    return torch.linalg.solve_triangular(factor, z.mT, upper=False).mT.to(_real(features))


def even(features: Tensor, floor: float = 0.0) -> Tensor:
    """Return rows of one length about the median m: ``√D·(z−m)/√(‖z−m‖² + D·floor)``.

    Long rows no longer outweigh short ones. No gradient flows through m.
    """
    z = features.to(torch.float64)
    z, size = z - z.detach().median(0).values, math.sqrt(z.shape[1])
    damped = functional.pad(z, (0, 1), value=size * math.sqrt(floor))
    return (size * unit_rows(damped)[:, :-1]).to(_real(features))


def unit_rows(z: Tensor) -> Tensor:
    """Return rows scaled to length one, in float64; rows of zeros stay."""
    z = z.double()
    peak = z.detach().abs().amax(1, keepdim=True) if z.shape[1] else z.new_ones(len(z), 1)
    z = z / torch.where(peak > 0, peak, 1.0)
    return z / z.norm(dim=1, keepdim=True).clamp(min=1.0)  # 1 or more, but for zeros


def _real(features: Tensor) -> Tensor:
    return features.to(torch.promote_types(features.dtype, torch.float32))
