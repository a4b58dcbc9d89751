"""Random features: what a linear probe reads of them, kernels and small networks read of Z."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from immunis.processes import summed, summed_with_gradient


def fourier(
    features: Tensor, count: int, gamma: float, generator: torch.Generator | None = None
) -> Tensor:
    """``cos(zᵀω + b)`` of ``count`` draws of ω ~ N(0, 2γI) and a phase b.

    Ridge regression on them is that with the kernel ``exp(−γ‖z − z'‖²)`` (Rahimi and Recht
    2007). Draws come from ``generator``, or else torch's own, on the CPU: equal on every device.
    """
    z = _real(features)
    frequencies = torch.randn(z.shape[1], count, generator=generator) * math.sqrt(2 * gamma)
    phases = 2 * math.pi * torch.rand(count, generator=generator)
    return torch.cos(z @ frequencies.to(z) + phases.to(z))


def standardised(features: Tensor, *, across: bool = False) -> Tensor:
    """Features centred and of unit deviation over the batch; constant ones become zero.

    With ``across`` the batch is what all processes of a distributed run hold together.
    """
    z = _real(features)

    def mean(values: Tensor) -> Tensor:
        total, count = values.sum(0), values.new_tensor(float(len(values)))
        if across:
            total, count = summed_with_gradient(total, shared=False), summed(count)
        return total / count

    z = z - mean(z)
    variance = mean(z.square())
    varies = variance > 1e-12 * variance.max()
    return z / torch.where(varies, variance, torch.inf).sqrt()


def _real(features: Tensor) -> Tensor:
    """At least in float32."""
    return features.to(torch.promote_types(features.dtype, torch.float32))
