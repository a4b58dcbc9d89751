"""Eigenvalues of a Gram matrix, its numerical rank, and κ with what is known of its error.

One cut-off decides which eigenvalues count as zero: ``cutoff = λ_max · max(D·ε, ε_in²)``. The first
term bounds the rounding of the matrix, held with precision ε, and of its decomposition: a Gram of
any number of rows is off by less than ``0.6·ε·tr K ≤ 0.6·D·ε·λ_max`` (``summation``). The second
is the noise that inputs stored with precision ``ε_in`` put on every eigenvalue of their Gram. A
matrix with a negative eigenvalue shows larger noise: the cut-off is then at least as large.

A full decomposition is slow on an accelerator. There squarings, Cholesky factors and products give
one end: σ₁, or the smallest eigenvalue that is not zero, and the projector on its eigenspace.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from immunis.core.errors import InputError, NumericalError, RankWarning
from immunis.data.checks import EPS64, LARGEST_MATRIX, check_size, square
from immunis.theory.gram import Gram, symmetric

REFERENCE_SHIFT = 1e-6
NOISE = 1e-8  # share of λ_max that is taken for rounding, in what is asymmetric or negative
COARSEST = 0.1  # share of λ_max that rounding may reach before a spectrum says nothing
TURNS, SQUARINGS = 5, 4  # at most so many turns, of so many squarings each
PURIFICATIONS = 8
CLEAR = 10  # how far above the cut-off the smallest eigenvalue must lie


def relative_cutoff(
    dimension: int, epsilon: float = EPS64, dtype: torch.dtype = torch.float64
) -> float:
    """Return the share of λ_max below which an eigenvalue is zero: ``max(D·ε, ε_in²)``.

    Raises ``InputError`` above a tenth: a wide matrix in bfloat16 or float16.
    """
    share = max(dimension * torch.finfo(dtype).eps, epsilon**2)
    if share > COARSEST:
        raise InputError(
            f"{dimension} dimensions in {dtype}: rounding reaches D·ε = {share:.3g} of the largest "
            f"eigenvalue, at most {COARSEST} is accepted. Use float32 or float64, as gram() does."
        )
    return share


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, largest first, and eigenvectors of a symmetric matrix, in float64.

    Runs on the CPU: CUDA's solver fails on ill-conditioned input.
    """
    matrix = square(matrix).detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(matrix).all()):
        raise NumericalError(
            "a matrix holds NaN or infinities: an earlier step diverged. Lower the step size or "
            "the weights of the regularizers."
        )
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0), vectors.flip(1)


@dataclass(frozen=True)
class Spectrum:
    """All D eigenvalues of a positive semi-definite ``matrix``, largest first.

    Those at or below ``cutoff`` count as zero. ``stored`` bounds what storing inputs and features
    changed in the features, in the Frobenius norm.
    """

    eigenvalues: Tensor
    cutoff: float
    samples: int | None = None
    stored: float = 0.0
    matrix: Tensor | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, source: Gram | Tensor | np.ndarray) -> Spectrum:
        """Decompose a ``Gram`` or a symmetric positive semi-definite matrix.

        Warns with ``RankWarning`` when there are fewer samples than dimensions: κ then
        describes the span of the samples, not the distribution they came from.

        >>> s = Spectrum.of(torch.diag(torch.tensor([4.0, 1.0, 0.0])))
        >>> s.condition_number, s.rank, s.dimension
        (4.0, 2, 3)
        """
        found = quiet_spectrum(source)
        if found.samples is not None and found.samples < found.dimension:
            warnings.warn(
                f"{found.samples} samples in {found.dimension} dimensions: the Gram matrix is "
                "rank-deficient and κ describes the sample, not the task. Use at least "
                f"{found.dimension} samples.",
                RankWarning,
                stacklevel=2,
            )
        return found

    @property
    def dimension(self) -> int:
        """Number of dimensions D."""
        return len(self.eigenvalues)

    @property
    def rank(self) -> int:
        """Number of eigenvalues above the cut-off."""
        return int((self.eigenvalues > self.cutoff).sum())

    @property
    def largest(self) -> float:
        """Largest eigenvalue."""
        return float(self.eigenvalues[0])

    @property
    def smallest(self) -> float:
        """Smallest eigenvalue that is not numerically zero; ``InputError`` for a zero matrix."""
        if self.rank == 0:
            raise InputError("the matrix is zero: every feature is zero, so κ is undefined.")
        return float(self.eigenvalues[self.rank - 1])

    @property
    def condition_number(self) -> float:
        """κ = σ_max/σ_min⁺ (paper, eq. 1), over the numerically non-zero eigenvalues."""
        return self.largest / self.smallest

    @property
    def relative_error(self) -> float:
        """Bound on the relative error of κ at this rank, also against features before storing.

        A direction that rounding took is not counted: κ is over ``rank`` of ``dimension``.

        The matrix and its eigenvalues are off by at most the cut-off c, and each singular value
        ``√λ`` of features by ``δ = ‖ΔZ‖`` (Weyl): ``ε_in/2·√(tr K)``, and what a linear map made
        of the rounding of its inputs (``Gram.carried``). So κ is off by at most
        ``(√(λ₁ + c) + δ)²/(√(λ_k − c) − δ)²·λ_k/λ₁ − 1``, ∞ where λ_k may be zero. The rounding
        inside a network is not counted: its features are taken as they came out.
        """
        first, last = self.largest, self.smallest
        low = math.sqrt(last - self.cutoff) - self.stored
        high = math.sqrt(first + self.cutoff) + self.stored
        return (high / low) ** 2 * (last / first) - 1 if low > 0 else math.inf

    def free_directions(self, primary: Spectrum) -> int:
        """Return the number of dimensions that this spectrum uses and ``primary`` does not."""
        if self.matrix is None or primary.matrix is None or self.dimension != primary.dimension:
            raise InputError("free directions need two spectra of matrices with the same features.")
        unused = eigh(primary.matrix)[1][:, primary.rank :]
        if not unused.shape[1]:
            return 0
        return int((eigh(unused.T @ self.matrix @ unused)[0] > self.cutoff).sum())


def quiet_spectrum(source: Gram | Tensor | np.ndarray) -> Spectrum:
    """Return what ``Spectrum.of`` does, without its warning."""
    epsilon, carried, samples = 0.0, 0.0, None
    if isinstance(source, Gram):
        epsilon, carried, samples = source.epsilon, source.carried, source.samples
        source = source.matrix()
    source = square(source)
    matrix = source.detach().to("cpu", torch.float64)
    scale = matrix.abs().max()
    check_size(scale, "numbers of the matrix", LARGEST_MATRIX)
    share = relative_cutoff(len(matrix), epsilon, source.dtype)
    slack = min(max(10 * share, NOISE), COARSEST)
    if float((matrix - matrix.T).abs().max()) > slack * float(scale):
        raise InputError("the matrix is not symmetric; pass a Gram matrix, as gram() builds.")
    values = torch.linalg.eigvalsh(symmetric(matrix)).flip(0)
    largest, least = float(values[0]), float(values[-1])
    if least < -slack * max(largest, float(scale)):
        raise InputError(
            f"the matrix has a negative eigenvalue ({least:.3g}); a Gram matrix has none."
        )
    stored = carried + epsilon / 2 * math.sqrt(float(values.clamp(min=0).sum()))
    return Spectrum(values, max(largest * share, -least, 0.0), samples, stored, matrix)


def reference_condition_number(matrix: Tensor | np.ndarray) -> float:
    """Return κ as the paper's released code does, for comparison with published figures only.

    It keeps the eigenvalues of ``S + 10⁻⁶·I`` above 10⁻⁶ (Zheng et al. 2025). On a rank-deficient
    matrix these are rounding noise, and κ is about ``σ_max/10⁻⁶``: it grows with the features'
    scale. Use ``Spectrum.condition_number`` for anything else.
    """
    matrix = square(matrix).detach().to(torch.float64)
    check_size(matrix, "numbers of the matrix", LARGEST_MATRIX)
    eye = torch.eye(len(matrix)).to(matrix)
    values = torch.linalg.eigvalsh(matrix + REFERENCE_SHIFT * eye)
    kept = values[values > REFERENCE_SHIFT]
    if not len(kept):
        raise InputError("no eigenvalue exceeds 1e-6; the released code has no figure for this.")
    return float(kept.max() / kept.min())


class End(NamedTuple):
    """The lower end: σ_k, the projector on its eigenspace over its dimension, and the rank k."""

    smallest: Tensor
    bottom: Tensor
    rank: int


def trace(matrix: Tensor) -> Tensor:
    """Return the trace of a matrix or of each in a stack, as 1×1 matrices."""
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


def leading_projector(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return σ₁ of a Gram matrix, and the projector on its eigenspace over its dimension.

    ``P ← P²/tr(P²)`` from ``P = S`` tends to ``u₁u₁ᵀ``, or its average over ties. After j squarings
    an eigenvalue a share δ below the largest weighs ``e^(−2ʲδ)``: ``‖SP − σ₁P‖ ≤ D·σ₁/(e·2ʲ)``.
    """
    s = square(matrix).detach().to(torch.float64)
    size = s.diagonal().sum()
    if not bool(size > 0):
        raise InputError("the trace is not positive: the matrix is zero, or no Gram matrix.")
    power = squared(s / size)
    return (s * power).sum(), power


def squared(power: Tensor, turns: int = TURNS) -> Tensor:
    """Square a matrix of trace one, or a stack of them, until it stays, four times a turn."""
    for _ in range(turns):  # the largest eigenvalue is at least 1/D, and D⁻¹⁶ fits float64
        before = power
        for _ in range(SQUARINGS):
            power = power @ power
        power = power / trace(power)
        if bool((power - before).abs().max() <= 1e-15):
            break
    return (power + power.mT) / 2


def trailing_projector(matrix: Tensor, share: float | None = None) -> End | None:
    """Return the smallest eigenvalue above ``share·σ₁``; None where rounding would decide the rank.

    Features that are always zero, or else the null space that ``null_projector`` finds, are lifted
    above σ₁, and what is then smallest leads the inverse. It must lie ten times above the cut-off,
    which bounds its error; else ``eigh`` has to decide.
    """
    s = square(matrix).detach().to(torch.float64)
    size = s.diagonal().sum()
    if not bool(size > 0):
        return None
    s, share = s / size, relative_cutoff(len(s)) if share is None else share
    largest = (s * squared(s, 1)).sum()  # σ₁ to within a factor D^(1/17)
    null = torch.diag((~s.any(1)).to(s))  # features that are always zero
    found = _lowest(s, null, largest, CLEAR * share)
    if found is None and (purified := null_projector(s, share * largest)) is not None:
        found = _lowest(s, purified, largest, max(CLEAR * share, 20 * share ** (2 / 3)))
    return None if found is None else found._replace(smallest=found.smallest * size)


def _lowest(s: Tensor, null: Tensor, largest: Tensor, least: float) -> End | None:
    """Return the lower end outside a null space; None below the least.

    A null space that is off by an angle c/σ_k lifts σ_k, too, by (c/σ_k)²·4σ₁. That is little where
    σ_k³ ≫ 4c²σ₁; one given exactly (zero features) does no harm.
    """
    factor, failed = torch.linalg.cholesky_ex(s + 4 * largest * null)
    if int(failed):
        return None
    inverse = torch.cholesky_inverse(factor)
    bottom = squared(inverse / inverse.diagonal().sum())
    smallest = (s * bottom).sum()
    if not bool(smallest > least * largest):
        return None
    return End(smallest, bottom, len(s) - round(float(null.diagonal().sum())))


def null_projector(s: Tensor, cutoff: Tensor) -> Tensor | None:
    """Return the projector on eigenvalues below a cut-off, by purification; None if one is near it.

    ``c(S + cI)⁻¹`` has the eigenvalues ``c/(c+λ)``: near 1 for λ ≪ c, near 0 for λ ≫ c, ½ at c.
    ``N ← 3N² − 2N³`` (McWeeny 1960) drives them to 1 and 0.
    """
    factor, failed = torch.linalg.cholesky_ex(s + cutoff * torch.eye(len(s)).to(s))
    if int(failed):
        return None
    start = found = cutoff * torch.cholesky_inverse(factor)
    for _ in range(PURIFICATIONS):
        square = found @ found
        found = 3 * square - 2 * square @ found
    found = (found + found.mT) / 2
    near = (found @ found - found).norm() * 1e6  # no projector: an eigenvalue near the cut-off
    high = (found @ s @ found).norm() / cutoff * 2  # what is below is not far below
    low = (start - start @ found).norm()  # what is above is not far above, or is negative
    return found if bool((torch.stack([near, high, low]) < 1).all()) else None
