"""Maps of features before a probe reads them: random, of one length, narrowed, principal."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from immunis.theory.spectrum import eigh, relative_cutoff

CONSTANT = 1e-12  # deviation, relative to the largest, at which a feature does not vary
COLUMNS = 8192  # that float64 sums take at a time: wide features fit the memory once


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


def even(features: Tensor) -> Tensor:
    """Return rows of one length about the median m: ``√D·(z−m)/‖z−m‖``.

    Long rows no longer outweigh short ones.
    """
    z = features.to(torch.float64)
    return (math.sqrt(z.shape[1]) * unit_rows(z - z.median(0).values)).to(_real(features))


def narrowed(features: Tensor, most: int, generator: torch.Generator | None = None) -> Tensor:
    """Return features (n, D), or ``most`` random linear combinations of wider ones."""
    if features.shape[1] <= most:
        return features
    device = features.device if generator is None else generator.device
    draw = torch.randn(features.shape[1], most, generator=generator, device=device)
    z = _real(features)
    return z @ (draw / math.sqrt(most)).to(z)


def principal_directions(rows: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the mean of few, wide rows (n×D) and at most ``most`` principal directions (D×k).

    With ``G = (Z − z̄)(Z − z̄)ᵀ = UΛUᵀ`` (n×n, float64, summed over blocks of columns) they are
    ``(Z − z̄)ᵀUΛ^{-1/2}``, the largest first. Directions that rounding hides are left out.
    """
    mean = rows.mean(0)
    inner = sum(
        (block := part.double() - centre.double()) @ block.T
        for part, centre in zip(rows.split(COLUMNS, 1), mean.split(COLUMNS), strict=True)
    )
    values, vectors = eigh(torch.as_tensor(inner))
    floor = relative_cutoff(len(values), torch.finfo(rows.dtype).eps)
    kept = min(most, int((values > values[0] * floor).sum()))
    aims = (vectors[:, :kept] / values[:kept].sqrt()).to(rows)
    return mean, (rows - mean).T @ aims


def mean_and_scale(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of every feature; ∞ for features that do not vary."""
    deviation, mean = torch.std_mean(rows, 0)
    return mean, torch.where(deviation > CONSTANT * deviation.max(), deviation, torch.inf)


def unit_rows(z: Tensor) -> Tensor:
    """Return rows scaled to length one, in float64; rows of zeros stay."""
    z = z.double()
    peak = z.detach().abs().amax(1, keepdim=True) if z.shape[1] else z.new_ones(len(z), 1)
    z = z / torch.where(peak > 0, peak, 1.0)
    return z / z.norm(dim=1, keepdim=True).clamp(min=1.0)  # 1 or more, but for zeros


def _real(features: Tensor) -> Tensor:
    return features.to(torch.promote_types(features.dtype, torch.float32))
