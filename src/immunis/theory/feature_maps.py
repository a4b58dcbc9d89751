"""Views of features that show a linear probe more of them: white, of one length, random.

What a linear probe reads of random features, kernels and small networks read of Z.
"""

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
    """``cos(zᵀω + b)`` of ``count`` draws of ω ~ N(0, 2γI) and a phase b.

    Ridge regression on them is that with the kernel ``exp(−γ‖z − z'‖²)`` (Rahimi and Recht
    2007). Draws come from ``generator``, or else torch's own on the features' device.
    """
    z = _real(features)
    device = z.device if generator is None else generator.device
    frequencies = torch.randn(z.shape[1], count, generator=generator, device=device)
    frequencies = math.sqrt(2 * gamma) * frequencies
    phases = 2 * math.pi * torch.rand(count, generator=generator, device=device)
    return torch.cos(z @ frequencies.to(z) + phases.to(z))


def white(features: Tensor, ridge: float = 1e-5, floor: float = 0.0) -> Tensor:
    """Features centred and white over the batch: ``(z − z̄)L⁻ᵀ`` with ``LLᵀ = Σ + λI``.

    ``λ = ridge·tr(Σ)/D + floor``, at least what rounding hides, in float64. No direction drowns
    the others unless it is 1/ridge times as large, so what ill-conditioning hides shows. Constant
    features become zero.

    Raises:
        NumericalError: if features are not finite.
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
    """Rows about the median m of each feature, of one length: ``√D·(z−m)/√(‖z−m‖² + D·floor)``.

    Where most rows are short and a few long, a probe sees the long ones, and so does a mean; here
    all count alike. A row at the median becomes zero. No gradient flows through m.
    """
    z = features.to(torch.float64)
    z, size = z - z.detach().median(0).values, math.sqrt(z.shape[1])
    damped = functional.pad(z, (0, 1), value=size * math.sqrt(floor))
    return (size * unit_rows(damped)[:, :-1]).to(_real(features))


def unit_rows(z: Tensor) -> Tensor:
    """Rows of length one, whatever their scale; rows of zeros stay."""
    z = z.double()
    peak = z.detach().abs().amax(1, keepdim=True) if z.shape[1] else z.new_ones(len(z), 1)
    z = z / torch.where(peak > 0, peak, 1.0)
    return z / z.norm(dim=1, keepdim=True).clamp(min=1.0)  # 1 or more, but for zeros


def _real(features: Tensor) -> Tensor:
    """At least in float32."""
    return features.to(torch.promote_types(features.dtype, torch.float32))
