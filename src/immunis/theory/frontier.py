"""RIR*, the largest RIR that a linear map can reach, and the θ that reaches it.

Let ``M = K_P^{-1/2} K_H K_P^{-1/2}`` on the range of K_P. If that range holds the range of K_H,
every invertible θ obeys ``κ_H(θ) ≤ κ(M)·κ_P(θ)``: with ``A = K_P^{1/2}θ`` the two Hessians are
``AᵀA`` and ``AᵀMA``. ``θ = K_P^{-1/2}·U·diag(a)``, U the eigenvectors of M and a rising with its
eigenvalues, attains it, so the largest relative immunization ratio is
``RIR* = κ(M)·κ(K_P)/κ(K_H)``.

Directions that only K_H uses are *free*: θ can give their harmful eigenvalues any size, at no cost
to the primary task, so RIR* is infinite. The *shared* ceiling is that of maps which drop them, or
decouple them from the others. docs/theory.md has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from immunis.core.errors import InputError
from immunis.data.checks import in_dtype, power_of_two
from immunis.theory.gram import Gram
from immunis.theory.rir import rir
from immunis.theory.spectrum import Spectrum, eigh, quiet_spectrum

FLOOR = 1e-3  # to which `measure` says what shrinking the free directions would give


@dataclass(frozen=True)
class Whitened:
    """A basis in which ``H_P = diag(1, 0, 0)`` and ``H_H = diag(μ, 1, 0)``."""

    values: Tensor  # the k_P numbers μ, largest first
    rank: int  # how many of them are not zero
    shared: Tensor  # the k_P directions that the primary task uses (D×k_P)
    free: Tensor  # the f directions that only the harmful task uses (D×f)
    unused: Tensor  # the directions that neither uses
    condition_number: float  # κ(M), or μ_max/μ_min if free directions make that larger


class Ceilings(NamedTuple):
    """What linear maps of two tasks' inputs can reach.

    Attributes:
        rir: RIR*, the largest RIR; ∞ with free directions.
        shared: the largest RIR of maps that drop or decouple free directions; else RIR*.
        harmful: the largest ``κ_H(θ)/κ(K_H)`` at ``κ_P(θ) ≤ κ(K_P)``, as Definition 3.1 asks.
        free_directions: number of directions that only the harmful task uses.
    """

    rir: float
    shared: float
    harmful: float
    free_directions: int

    @property
    def floored(self) -> float:
        """RIR of ``frontier`` with free directions shrunk to ``FLOOR``."""
        return min(self.rir, self.shared / FLOOR)


def whiten(primary: Spectrum, harmful: Spectrum) -> Whitened:
    """Diagonalise both Grams at once; free directions are split off by a Schur complement.

    With ``K_H = LLᵀ`` and an orthonormal basis N of the directions in which K_P vanishes, the SVD
    ``NᵀL = PSQᵀ`` gives the free directions ``C = NP/S``, for which ``CᵀK_H C = I``. The others are
    ``V − C·CᵀK_H V`` with ``V = K_P^{-1/2}U``. The μ are squared singular values of ``K_P^{-1/2}L``
    on the complement of Q, which keeps small ones exact where forming M would drown them in
    rounding amplified by κ(K_P).
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
    cutoff = harmful.cutoff / size
    p, s, qh = torch.linalg.svd(null.T @ factor, full_matrices=True)
    count = int((s**2 > cutoff).sum())
    free = null @ p[:, :count] / s[:count]
    rest = factor @ qh[count:].T  # what of K_H is left beside the free directions
    u, sigma, _ = torch.linalg.svd(root.T @ rest, full_matrices=True)
    basis = root @ u
    mu = torch.zeros(primary.rank, dtype=torch.float64)
    mu[: len(sigma)] = size * sigma**2
    kappas, rank = [1.0], 0
    for part in (factor, rest) if count else (rest,):
        rank = int((torch.linalg.svdvals(used.T @ part) ** 2 > cutoff).sum())
        found = torch.linalg.svdvals(root.T @ part)[:rank]
        kappas += [float(found[0] / found[-1]) ** 2] if rank else []
    return Whitened(
        mu,
        rank,
        basis - free @ (qh[:count] @ (factor.T @ basis)),
        free / math.sqrt(size),
        null @ p[:, count:],
        max(kappas),
    )


def damped(gram: Gram, ridge: float) -> Spectrum:
    """Return the spectrum of ``K + ridge·tr(K)/D·I``."""
    if not 0 <= ridge < math.inf:
        raise InputError(f"ridge must be a finite number of at least 0, got {ridge}.")
    if not ridge:
        return quiet_spectrum(gram)
    matrix = gram.matrix()
    matrix.diagonal().add_(ridge * matrix.diagonal().mean())
    return Spectrum.of(matrix)


def ceilings(primary: Gram, harmful: Gram, ridge: float = 0.0) -> Ceilings:
    """Return what linear maps can reach on two tasks.

    A ``ridge`` above 0 first adds ``λ = ridge·tr(K)/D`` to each Gram's diagonal. The figures are
    then finite and bound the ratio of the κ(θᵀ(K+λI)θ), which an attacker meets who penalises the
    probe θw in input space. A penalty on w itself has no such bound: scaling θ up makes it vanish.
    """
    k_p, k_h = damped(primary, ridge), damped(harmful, ridge)
    whitened = whiten(k_p, k_h)
    change = k_h.condition_number, whitened.condition_number
    shared = rir(primary=(k_p.condition_number, 1.0), harmful=change).value
    free = whitened.free.shape[1]
    if k_h.rank == 1:  # κ_H is 1 for every θ
        return Ceilings(shared, shared, 1.0, free)
    best = math.inf if free else shared
    return Ceilings(best, shared, best, free)


def ceiling(primary: Gram, harmful: Gram, ridge: float = 0.0) -> float:
    """Return ``RIR*``, the largest relative immunization ratio that any linear θ can reach."""
    return ceilings(primary, harmful, ridge).rir


def frontier(
    primary: Spectrum, harmful: Spectrum, budget: float = 1.0, floor: float = 1.0
) -> Tensor:
    """Return an invertible θ on the Pareto frontier: ``κ_P = budget``, ``κ_H = κ(M)·budget``.

    The directions that the primary task uses are scaled by aᵢ, ``aᵢ² = (μᵢ/μ_min)^t`` with t such
    that the a² span the budget; it is not spent where only one of them is harmful. Free directions
    are shrunk until ``κ_H = κ·budget/floor``, with the κ of ``Whitened``. For the frontier under a
    ridge, pass ``damped`` Grams.
    """
    if not 1 <= budget < math.inf:
        raise InputError(f"budget must be a finite number of at least 1, got {budget}.")
    if not 0 < floor <= 1:
        raise InputError(f"floor must be above 0 and at most 1, got {floor}.")
    w = whiten(primary, harmful)
    squares = torch.ones_like(w.values)
    squares[: w.rank] = _spread(w.values[: w.rank], budget)
    columns = w.shared * squares.sqrt()
    typical = columns.norm(dim=0).log().mean().exp()
    top = float(w.values[0] * squares[0]) if w.rank else 1.0
    sizes = torch.full_like(w.free[0], floor * top / (w.condition_number * budget))
    if not w.rank:  # every harmful direction is free, and one of them stays large
        sizes[0] = top
    theta = torch.cat([columns, w.free * sizes.sqrt(), typical * w.unused], dim=1)
    return in_dtype(theta, torch.float64, "θ on the frontier")


def _spread(mu: Tensor, budget: float) -> Tensor:
    """Return factors from ``budget`` down to 1 that fall with μ: ``(μ/μ_min)^t``."""
    if len(mu) < 2:  # one direction has no κ to raise
        return torch.ones_like(mu)
    span = math.log(float(mu[0] / mu[-1]))
    if span > 0:
        return (mu / mu[-1]) ** (math.log(budget) / span)
    return budget ** torch.linspace(1, 0, len(mu), dtype=mu.dtype)
