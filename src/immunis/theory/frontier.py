"""RIR*, the largest RIR that a linear map can reach, and the θ that reaches it.

Let ``M = K_P^{-1/2} K_H K_P^{-1/2}`` on the range of K_P. Every invertible θ obeys
``κ_H(θ) ≤ κ(M)·κ_P(θ)``: with ``A = K_P^{1/2}θ`` the two Hessians are ``AᵀA`` and ``AᵀMA``.
``θ = K_P^{-1/2}·U·diag(a)``, U the eigenvectors of M and a rising with its eigenvalues,
attains it, so the largest relative immunization ratio is ``RIR* = κ(M)·κ(K_P)/κ(K_H)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from immunis.core.errors import InputError
from immunis.theory.gram import Gram
from immunis.theory.rir import rir
from immunis.theory.scale import in_dtype, power_of_two
from immunis.theory.spectrum import Spectrum, eigh, quiet_spectrum


@dataclass(frozen=True)
class Whitened:
    """The harmful Gram in coordinates where the primary one is the identity."""

    values: Tensor  # the k_P eigenvalues μ of M, largest first
    rank: int  # how many of them are not zero
    basis: Tensor  # K_P^{-1/2}·U (D×k_P), which makes H_P the identity and H_H diagonal
    null: Tensor  # orthonormal basis of the directions in which K_P vanishes (D×(D−k_P))

    @property
    def condition_number(self) -> float:
        """κ(M) over its non-zero eigenvalues."""
        return float(self.values[0] / self.values[self.rank - 1])


def whiten(primary: Spectrum, harmful: Spectrum) -> Whitened:
    """Solve the generalized eigenproblem ``K_H v = μ K_P v`` on the range of K_P.

    With ``K_H = LLᵀ`` the μ are squared singular values of ``K_P^{-1/2}L``, which keeps small
    ones exact where forming M would drown them in rounding amplified by κ(K_P).
    """
    if primary.matrix is None or harmful.matrix is None or primary.dimension != harmful.dimension:
        came = (
            f"primary Gram ({primary.dimension} features), harmful ({harmful.dimension} features)"
        )
        raise InputError(f"{came}: both must have the same features.")
    if not primary.rank or not harmful.rank:
        raise InputError("a Gram matrix is zero: every feature of that task is zero.")
    values, vectors = eigh(primary.matrix)
    used, null = vectors[:, : primary.rank], vectors[:, primary.rank :]
    root = used * values[: primary.rank].rsqrt()
    size = 2 * power_of_two(harmful.matrix)  # κ(M) has no unit
    values_h, vectors_h = eigh(harmful.matrix / size)
    factor = vectors_h[:, : harmful.rank] * values_h[: harmful.rank].sqrt()
    u, s, _ = torch.linalg.svd(root.T @ factor, full_matrices=True)
    mu = torch.zeros(primary.rank, dtype=torch.float64)
    mu[: len(s)] = size * s**2
    inside = torch.linalg.svdvals(used.T @ factor) ** 2
    return Whitened(mu, int((inside > harmful.cutoff / size).sum()), root @ u, null)


def damped(gram: Gram, ridge: float) -> Spectrum:
    """Return the spectrum of ``K + ridge·tr(K)/D·I``."""
    if not 0 <= ridge < math.inf:
        raise InputError(f"ridge must be a finite number of at least 0, got {ridge}.")
    if not ridge:
        return quiet_spectrum(gram)
    matrix = gram.matrix()
    matrix.diagonal().add_(ridge * matrix.diagonal().mean())
    return Spectrum.of(matrix)


def ceiling(primary: Gram, harmful: Gram, ridge: float = 0.0) -> float:
    """Return ``RIR*``, the largest relative immunization ratio any linear θ can reach.

    Infinite when there are free directions, which can be shrunk at no cost to the primary task, and
    the harmful task has another direction to compare them with. A ``ridge`` above 0 first adds
    ``λ = ridge·tr(K)/D`` to each Gram's diagonal. The figure is then finite and bounds the ratio of
    the κ(θᵀ(K+λI)θ), which an attacker meets who penalises the probe θw in input space. A penalty
    on w itself has no such bound: scaling θ up makes it vanish.
    """
    k_p, k_h = damped(primary, ridge), damped(harmful, ridge)
    whitened = whiten(k_p, k_h)
    if k_h.free_directions(k_p):
        return math.inf if k_h.rank > 1 else k_p.condition_number
    harmful_change = k_h.condition_number, whitened.condition_number
    return rir(primary=(k_p.condition_number, 1.0), harmful=harmful_change).value


def frontier(
    primary: Spectrum, harmful: Spectrum, budget: float = 1.0, free_scale: float = 1.0
) -> Tensor:
    """Return θ on the Pareto frontier: ``κ_P = budget`` and ``κ_H = κ(M)·budget``.

    ``θ = K_P^{-1/2}·U·diag(a)``, ``aᵢ² = (μᵢ/μ_min)^t`` with t such that the a² span the
    budget. An orthonormal basis, scaled to the typical column and by ``free_scale``, fills the
    directions in which K_P vanishes, so that θ is invertible. With free directions κ_H also depends
    on that scale. For the frontier under a ridge, pass ``damped`` Grams.
    """
    if not 1 <= budget < math.inf:
        raise InputError(f"budget must be a finite number of at least 1, got {budget}.")
    if not 0 < free_scale < math.inf:
        raise InputError(f"free_scale must be positive and finite, got {free_scale}.")
    whitened = whiten(primary, harmful)
    mu = whitened.values.clamp(min=float(whitened.values[max(whitened.rank, 1) - 1]))
    span = math.log(float(mu[0] / mu[-1])) if float(mu[-1]) > 0 else 0.0
    columns = whitened.basis
    if span > 0:
        columns = columns * (mu / mu[-1]) ** (math.log(budget) / span / 2)
    typical = columns.norm(dim=0).log().mean().exp()
    theta = torch.cat([columns, free_scale * typical * whitened.null], dim=1)
    return in_dtype(theta, torch.float64, "θ on the frontier")
