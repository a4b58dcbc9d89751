"""Step sizes known in closed form: exact line search, and steps that surely move κ.

A certified R_well or R_ill step corrects the paper's theorem 4.3. The eigenvalues of H(θ) move in
closed form, so three of them give the exact set of step sizes that lowers (or raises) κ. The
intervals printed in the theorem are neither sufficient nor necessary. ``eigenvalues`` are the k
non-zero eigenvalues of H(θ) and ``dimension`` is D.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from immunis.core.errors import InputError
from immunis.core.settings import whole
from immunis.data.checks import as_tensor, power_of_two
from immunis.theory.gram import Gram
from immunis.theory.regularizers import ill_gap, tied
from immunis.theory.spectrum import Spectrum, eigh

LARGEST = 1e65  # eigenvalue, and 1 over the smallest, whose step sizes fit float64
Steps = tuple[tuple[float, float], ...]


def line_search(hessian: Tensor, cross: Tensor, start: Tensor | None = None) -> Iterator[Tensor]:
    """Yield the iterates w₀, w₁, ... of steepest descent on ``‖Zw − Y‖²``, forever.

    Gradient ``g = Hw − B`` with ``H = ZᵀZ`` (D×D) and ``B = ZᵀY`` (D×C). The step ``‖g‖²/⟨g, Hg⟩``
    minimises the loss along g (paper, section 5.1). ``start`` is w₀, by default zero.
    """
    w = torch.zeros_like(cross) if start is None else start.clone()
    largest, epsilon = hessian.abs().max(), len(hessian) * torch.finfo(hessian.dtype).eps
    while True:
        yield w
        gradient = hessian @ w - cross
        noise = epsilon * (largest * w.abs().sum(0).max() + cross.abs().max())
        if bool(gradient.abs().max() <= noise):  # the optimum: what is left is rounding
            continue
        way = gradient / power_of_two(gradient)  # where squares fit; their ratio is the same
        curvature = float((way * (hessian @ way)).sum())
        if curvature > 0:  # at the optimum the gradient is zero and w stays
            w = w - float(way.square().sum()) / curvature * gradient


def norm_ratio_curve(moments: Gram, steps: int = 100) -> Tensor:
    """Return ``‖w_t − w*‖²/‖w₀ − w*‖²`` of exact line search, t = 0..steps (paper, eq. 10).

    Starts at w₀ = 0; w* is the least-squares solution of smallest norm, so directions that
    no data reaches do not count. ``moments`` come from ``gram(task, extractor)``.
    """
    steps = whole(steps, "steps")
    if not moments.cross().shape[1]:
        raise InputError(
            "the moments hold no targets, which a norm ratio needs; build them with gram(task)."
        )
    values, vectors = eigh(moments.matrix())
    spectrum = Spectrum.of(moments)
    kept, cross = values[: spectrum.rank], vectors[:, : spectrum.rank].T @ moments.cross()
    optimum = cross / kept[:, None]  # in coordinates of the directions that data reaches
    size = optimum.square().sum()
    if not float(size) > 0:
        raise InputError(
            "the targets are orthogonal to every feature: w = 0, where descent starts, is already "
            "the optimum, so there is no norm ratio."
        )
    path = itertools.islice(line_search(torch.diag(kept), optimum * kept[:, None]), steps + 1)
    return torch.stack([(w - optimum).square().sum() / size for w in path])


def _sorted_positive(eigenvalues: Tensor, dimension: float = math.inf) -> Tensor:
    """Return eigenvalues in float64, largest first, checked."""
    sigma = as_tensor(eigenvalues, "eigenvalues").detach().to("cpu", torch.float64).reshape(-1)
    sigma = sigma.sort(descending=True).values
    if not len(sigma) or not bool(((sigma >= 1 / LARGEST) & (sigma <= LARGEST)).all()):
        raise InputError(
            f"eigenvalues of H(θ) must be positive, {1 / LARGEST:.0e} to {LARGEST:.0e}. Drop those "
            "that are zero (Spectrum.rank says how many remain)."
        )
    if not dimension >= len(sigma):
        raise InputError(
            f"{len(sigma)} eigenvalues came; expected at most {dimension}, one a dimension."
        )
    return sigma


def eigenvalues_after_well_step(eigenvalues: Tensor, step: float, dimension: int) -> Tensor:
    """Return the eigenvalues of H after ``θ ← θ(I − 2η·∇_H R_well)``, in the order they came.

    ``σ₁' = σ₁(1 − 2η(1/m − 1/D)σ₁)²`` for the m-fold largest, ``σᵢ' = σᵢ(1 + 2ησᵢ/D)²`` below.
    """
    sigma = _sorted_positive(eigenvalues, dimension)
    if not math.isfinite(step):
        raise InputError(f"a step size must be finite, got {step}.")
    top = tied(sigma, 0)
    slope = top.to(sigma) / int(top.sum()) - 1 / dimension
    return sigma * (1 - 2 * step * slope * sigma) ** 2


def well_steps(eigenvalues: Tensor, dimension: int) -> Steps:
    """Return the exact set of step sizes η > 0 for which an R_well step lowers κ.

    At most two open intervals; none if κ = 1 already. Only σ₁, the next smaller eigenvalue σ₂ and
    the smallest σ_k enter: with ``f₁ = √σ₁|1−2aσ₁η|`` and ``fᵢ = √σᵢ(1+2σᵢη/D)``, κ falls exactly
    when f₁ and f₂ stay below ``√κ·min(f₁, f_k)``.

    >>> well_steps(torch.tensor([4.0, 1.0]), 2)
    ((0.0, 0.17647058823529413), (0.3333333333333333, 0.6666666666666666))
    """
    sigma = _sorted_positive(eigenvalues, dimension)
    m = int(tied(sigma, 0).sum())
    if m == len(sigma):
        return ()
    s1, s2, sk = sigma[[0, m, -1]].sqrt().tolist()
    a, b, r = 1 / m - 1 / dimension, 1 / dimension, s1 / sk
    end = _positive_ratio(1, a * s1**2 - b * sk**2)  # f₁ < r·f_k
    end = min(end, _positive_ratio(s1 - s2, 2 * b * (s2**3 - s1 * sk**2)))  # f₂ < r·f_k
    first = (r * s1 - s2) / (2 * (b * s2**3 + a * r * s1**3))  # f₂ < r·f₁, f₁ falling
    again = _positive_ratio(s2 + r * s1, 2 * (a * r * s1**3 - b * s2**3))  # and rising
    parts = ((0.0, min(first, end)), (again, end))
    return tuple((low, high) for low, high in parts if low < high)


def ill_steps(eigenvalues: Tensor) -> Steps:
    """Return the exact set of step sizes η > 0 for which an R_ill step raises κ.

    With ``r = η·R_ill²``: ``σᵢ' = σᵢ(1 + 2rσᵢ/k)²`` above the m-fold smallest, and
    ``σ_k' = σ_k(1 − 2r(1/m − 1/k)σ_k)²``. Open intervals, with ∞ as a possible end; empty if all
    eigenvalues agree. The one step that sends σ_k to zero separates two intervals.
    """
    sigma = _sorted_positive(eigenvalues)
    m, k = int(tied(sigma, -1).sum()), len(sigma)
    if m == k:
        return ()
    s1, sj, sk = sigma[[0, k - m - 1, -1]].sqrt().tolist()
    a, b = 1 / m - 1 / k, 1 / k
    zero = 1 / (2 * a * sk**2)  # σ_k' = 0
    first = _positive_ratio(1, a * sk**2 - b * s1**2)  # f₁/f_k > √κ
    second = min(
        _positive_ratio(sj - sk, 2 * b * (sk * s1**2 - sj**3)),  # f₁/f_j > √κ
        _positive_ratio(sk**2 + s1 * sj, 2 * (a * sk**4 - b * s1 * sj**3)),  # f_k/f_j > √κ
    )
    ends = [(0.0, first), (second, math.inf)] if first < second else [(0.0, math.inf)]
    parts: list[tuple[float, float]] = []
    for start, stop in ends:
        parts += [(start, zero), (zero, stop)] if start < zero < stop else [(start, stop)]
    scale = float(ill_gap(sigma)) ** 2
    return tuple((low * scale, high * scale) for low, high in parts if low < high)


def _positive_ratio(numerator: float, denominator: float) -> float:
    """``numerator/denominator`` where the denominator is positive, else ∞ (never reached)."""
    return numerator / denominator if denominator > 0 else math.inf


def certified_well_step(eigenvalues: Tensor, dimension: int) -> float:
    """Return the step size at which an R_well step lowers κ the most; 0 if none does.

    κ falls until σ₁ meets the next eigenvalue: ``η = (√σ₁−√σ₂)/(2(aσ₁^{3/2} + σ₂^{3/2}/D))``
    with ``a = 1/m − 1/D``. Repeating it merges one more eigenvalue each time and reaches
    κ = 1 after at most k−1 steps.
    """
    sigma = _sorted_positive(eigenvalues, dimension)
    m = int(tied(sigma, 0).sum())
    if m == len(sigma):
        return 0.0
    s1, s2 = sigma[[0, m]].sqrt().tolist()
    return (s1 - s2) / (2 * ((1 / m - 1 / dimension) * s1**3 + s2**3 / dimension))


def certified_well_factors(eigenvalues: Tensor, dimension: int, steps: int) -> Tensor:
    """Return what ``steps`` certified R_well steps multiply each eigendirection of θ by.

    H(θ) keeps its eigenvectors, so each step scales each direction, by ``1 − 2η·slope·σ``. After
    k−1 steps θ has whitened the task, and further ones change nothing.
    """
    sigma = _sorted_positive(eigenvalues)
    factors = torch.ones_like(sigma)
    for _ in range(steps):
        step = certified_well_step(sigma, dimension)
        if step == 0:
            break
        m = int(tied(sigma, 0).sum())
        after = eigenvalues_after_well_step(sigma, step, dimension)
        after[: m + 1] = after[m]  # they meet; rounding must not tell them apart again
        factors *= (after / sigma).sqrt()
        sigma = after
    return factors


def certified_ill_step(eigenvalues: Tensor, fraction: float = 0.5) -> float:
    """Return a step size at which an R_ill step surely raises κ; 0 if none does.

    κ rises without bound as η nears ``1/(2(1/m − 1/k)σ_k·R_ill²)``, which sends σ_k to zero;
    ``fraction`` of the way there leaves ``σ_k' = (1−fraction)²·σ_k``.
    """
    if not 0 < fraction < 1:
        raise InputError(f"fraction must lie strictly between 0 and 1, got {fraction}.")
    sigma = _sorted_positive(eigenvalues)
    m, k = int(tied(sigma, -1).sum()), len(sigma)
    if m == k:
        return 0.0
    return fraction * (float(ill_gap(sigma)) ** 2 / (2 * (1 / m - 1 / k) * float(sigma[-1])))
