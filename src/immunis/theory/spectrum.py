"""Eigenvalues of a Gram matrix, its numerical rank, and κ with what is known of its error.

One cut-off decides which eigenvalues count as zero: ``cutoff = λ_max · max(D·ε, ε_in²)``. The first
term bounds the rounding of the matrix, held with precision ε, and of its decomposition. The second
is the noise that inputs stored with precision ``ε_in`` put on every eigenvalue of their Gram.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from immunis.core.errors import InputError, NumericalError, RankWarning
from immunis.data.checks import EPS64
from immunis.theory.gram import Gram, symmetric
from immunis.theory.scale import LARGEST_MATRIX, check_size, square

REFERENCE_SHIFT = 1e-6
COARSEST = 0.1  # share of λ_max that rounding may reach before a spectrum says nothing


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
            f"eigenvalue, at most {COARSEST} is taken. Use float32 or float64, as gram() does."
        )
    return share


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, largest first, and eigenvectors of a symmetric matrix, in float64.

    Runs on the CPU: CUDA's solver fails on ill-conditioned input.
    """
    matrix = square(matrix).detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(matrix).all()):
        remedy = "lower the step size or the weights of the regularizers"
        raise NumericalError(
            f"a matrix holds NaN or infinities, an earlier step diverged: {remedy}."
        )
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0), vectors.flip(1)


@dataclass(frozen=True)
class Spectrum:
    """All D eigenvalues of a positive semi-definite ``matrix``, largest first.

    Those at or below ``cutoff`` count as zero.
    """

    eigenvalues: Tensor
    cutoff: float
    samples: int | None = None
    matrix: Tensor | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, source: Gram | Tensor | np.ndarray, *, center: bool = False) -> Spectrum:
        """Decompose a ``Gram`` or a symmetric positive semi-definite matrix.

        Warns with ``RankWarning`` when there are fewer samples than dimensions: κ then
        describes the span of the samples, not the distribution they came from.

        >>> s = Spectrum.of(torch.diag(torch.tensor([4.0, 1.0, 0.0])))
        >>> s.condition_number, s.rank, s.dimension
        (4.0, 2, 3)
        """
        epsilon, samples = EPS64, None
        if isinstance(source, Gram):
            epsilon, samples = source.epsilon, source.samples
            source = source.matrix(center=center)
        elif center:
            raise InputError("center needs the moments of a Gram, not a bare matrix.")
        source = square(source)
        matrix = source.detach().to("cpu", torch.float64)
        scale = matrix.abs().max()
        check_size(scale, "numbers of the matrix", LARGEST_MATRIX)
        share = relative_cutoff(len(matrix), epsilon, source.dtype)
        slack = min(10 * share, COARSEST)
        if float((matrix - matrix.T).abs().max()) > max(1e-8, slack) * float(scale):
            raise InputError("the matrix is not symmetric; pass a Gram matrix, as gram() builds.")
        values = torch.linalg.eigvalsh(symmetric(matrix)).flip(0)
        largest, least = float(values[0]), float(values[-1])
        if least < -slack * max(largest, float(scale)):
            raise InputError(f"a negative eigenvalue ({least:.3g}) came; a Gram matrix has none.")
        if samples is not None and samples < len(matrix):
            warnings.warn(
                f"{samples} samples in {len(matrix)} dimensions: the Gram matrix is rank-deficient "
                f"and κ describes the sample, not the task. Use at least {len(matrix)} samples.",
                RankWarning,
                stacklevel=2,
            )
        return cls(values, max(largest * share, 0.0), samples, matrix)

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
        """Bound on the relative error of κ: the cut-off over the smallest eigenvalue kept."""
        return self.cutoff / self.smallest

    def free_directions(self, primary: Spectrum) -> int:
        """Return the number of dimensions that this spectrum uses and ``primary`` does not."""
        if self.matrix is None or primary.matrix is None or self.dimension != primary.dimension:
            raise InputError("free directions need two spectra of matrices with the same features.")
        unused = eigh(primary.matrix)[1][:, primary.rank :]
        if not unused.shape[1]:
            return 0
        return int((eigh(unused.T @ self.matrix @ unused)[0] > self.cutoff).sum())


def quiet_spectrum(gram: Gram) -> Spectrum:
    """Return the spectrum of a Gram without the warning on few samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        return Spectrum.of(gram)


def reference_condition_number(matrix: Tensor | np.ndarray) -> float:
    """Return κ as the paper's released code does, for comparison with published figures only.

    It keeps the eigenvalues of ``S + 10⁻⁶·I`` above 10⁻⁶ (Zheng et al. 2025). On a rank-deficient
    matrix these are rounding noise, and κ is about ``σ_max/10⁻⁶``: it grows with the features'
    scale. Use ``Spectrum.condition_number`` for anything else.
    """
    matrix = square(matrix).detach().to("cpu", torch.float64)
    check_size(matrix, "numbers of the matrix", LARGEST_MATRIX)
    eye = torch.eye(len(matrix), dtype=torch.float64)
    values = torch.linalg.eigvalsh(matrix + REFERENCE_SHIFT * eye)
    kept = values[values > REFERENCE_SHIFT]
    if not len(kept):
        raise InputError("no eigenvalue exceeds 1e-6; the released code has no figure for this.")
    return float(kept.max() / kept.min())
