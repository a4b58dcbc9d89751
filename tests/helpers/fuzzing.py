"""Inputs for the fuzz suite, and exact answers at 50 digits to hold against.

``Inputs`` are drawn by hypothesis: shapes, rank, scale, precision and damage one by one, so that a
failing case shrinks to few of them; the numbers inside come from a seed.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import mpmath
import numpy as np
import torch
from hypothesis import strategies as st

mpmath.mp.dps = 50
EPS = 2.0**-52
WIDE = 8
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
KINDS = ("integers", "normal", "normal", "orthogonal", "spread", "spread", "constant")
DAMAGE = (*[None] * 18, math.nan, math.inf, -math.inf)
LONG = (1, 10, 100, 1000, 1000, 10**4, 10**4, 10**6)  # rows of long data, at most


@dataclass(frozen=True)
class Inputs:
    """One drawn case; ``x`` and ``h`` are features of two tasks on the same columns."""

    n: int
    d: int
    rank: int
    kind: str
    scale: float
    other_scale: float
    dtype: str
    offset: float
    twice: bool
    damage: float | None
    place: int
    ridge: float
    long: int
    seed: int

    @property
    def times(self) -> int:
        """How often long data holds every row."""
        return max(1, self.long // self.n)

    def features(self, salt: int = 0, scale: float | None = None) -> torch.Tensor:
        """Features (n×d) of the drawn rank (before an offset), scale, precision and damage."""
        rng = np.random.default_rng((self.seed, salt))
        n, d, r = self.n, self.d, min(self.rank, self.n, self.d)
        if self.kind == "constant":
            x = np.tile(rng.normal(size=d), (n, 1))
        elif self.kind == "orthogonal":
            x = np.eye(n, d)[rng.permutation(n)] * (np.arange(d) < r)
        elif self.kind == "integers":
            x = (rng.integers(-3, 4, (n, r)) @ rng.integers(-3, 4, (r, d))).astype(float)
        else:
            x = rng.normal(size=(n, r)) @ rng.normal(size=(r, d))
            x = x * np.logspace(0, -4, d) if self.kind == "spread" else x
        x = x + self.offset
        if self.twice:
            x = x[np.arange(n) // 2 * 2 % n]
        with np.errstate(all="ignore"):
            x = x * (self.scale if scale is None else scale)
        if self.damage is not None and salt == 0:
            x.flat[self.place % x.size] = self.damage
        kind = DTYPES[self.dtype]
        if not kind.is_floating_point:
            x = x / min(1.0, self.scale if scale is None else scale)  # not all zeros
            x = np.clip(np.nan_to_num(x, posinf=9, neginf=9), -1e15, 1e15)
            x = np.abs(x) % 256 if kind is torch.uint8 else x
        return torch.from_numpy(np.ascontiguousarray(x)).to(kind)

    @property
    def x(self) -> torch.Tensor:
        """Features of the primary task, damage included."""
        return self.features()

    @property
    def h(self) -> torch.Tensor:
        """Features of the harmful task, at a scale of their own."""
        return self.features(1, self.other_scale)

    def targets(self, columns: int = 2, scale: float = 1.0) -> torch.Tensor:
        """A target matrix (n×columns) in float64."""
        rng = np.random.default_rng((self.seed, 2))
        return torch.from_numpy(rng.normal(size=(self.n, columns)) * scale)

    def labels(self, salt: int = 3) -> torch.Tensor:
        """Two classes."""
        return torch.from_numpy(np.random.default_rng((self.seed, salt)).integers(0, 2, self.n))

    def square(self) -> torch.Tensor:
        """A symmetric positive semi-definite matrix: a Gram at unit scale, scaled and rounded."""
        clean = dataclasses.replace(self, scale=1.0, damage=None, dtype="float64").features()
        gram = clean.T @ clean * self.scale
        gram = (gram + gram.T) / 2
        kind = DTYPES[self.dtype]
        if not kind.is_floating_point:
            return gram.clamp(-1e15, 1e15).to(torch.int64)
        if self.damage is not None:
            row, column = divmod(self.place % gram.numel(), self.d)
            gram[row, column] = gram[column, row] = self.damage
        return gram.to(kind)

    def sigma(self) -> torch.Tensor:
        """Positive eigenvalues, some repeated, the smallest at least 1e-6 of the largest."""
        rng = np.random.default_rng((self.seed, 4))
        values = 10.0 ** -rng.integers(0, 7, self.d).astype(float) * rng.integers(1, 4, self.d)
        values = torch.from_numpy(np.sort(values)[::-1].copy() * self.scale)
        if self.damage is not None:
            values[self.place % self.d] = self.damage
        return values


@st.composite
def inputs(draw: st.DrawFn, most: int = 5) -> Inputs:
    """Draw a case; most are such that an answer is wanted, some must be refused."""
    usual = [st.just(0), st.integers(-10, 10), st.integers(-40, 40)]
    powers = st.one_of(*usual, st.integers(-300, 300))
    d = draw(st.integers(1, most))
    return Inputs(
        n=draw(st.sampled_from((*range(2, 2 * most), 1, *range(2, 2 * most)))),
        d=d,
        rank=draw(st.one_of(st.just(d), st.integers(1, d), st.integers(0, d))),
        kind=draw(st.sampled_from(KINDS)),
        scale=10.0 ** draw(powers),
        other_scale=10.0 ** draw(powers),
        dtype=draw(st.sampled_from(list(DTYPES))),
        offset=draw(st.sampled_from((0.0, 0.0, 1.0, 1e6))),
        twice=draw(st.booleans()),
        damage=draw(st.sampled_from(DAMAGE)),
        place=draw(st.integers(0, 99)),
        ridge=10.0 ** draw(st.integers(-6, 2)),
        long=draw(st.sampled_from(LONG)),
        seed=draw(st.integers(0, 2**31)),
    )


# Exact answers. Matrices of mpmath hold the very numbers that were passed.


def exact(matrix: torch.Tensor) -> mpmath.matrix:
    """The numbers of a tensor as they are."""
    return mpmath.matrix(matrix.to(torch.float64).tolist())


def centred(matrix: mpmath.matrix) -> mpmath.matrix:
    """Columns about their means."""
    rows, columns = matrix.rows, matrix.cols
    means = [mpmath.fsum(matrix[:, j]) / rows for j in range(columns)]
    return mpmath.matrix([[matrix[i, j] - means[j] for j in range(columns)] for i in range(rows)])


def eigenvalues(matrix: mpmath.matrix) -> list[mpmath.mpf]:
    """Eigenvalues of a symmetric matrix, largest first, computed at unit scale.

    Those of a wide one only in float64, to D·EPS of the largest: at 50 digits they take seconds.
    """
    peak = max(abs(v) for v in matrix)
    if not peak:
        return [mpmath.mpf(0)] * matrix.rows
    scaled = (matrix + matrix.T) / (2 * peak)
    if matrix.rows > WIDE:
        found = map(mpmath.mpf, np.linalg.eigvalsh(np.array(scaled.tolist(), dtype=float)))
    else:
        found = mpmath.eigsy(scaled, eigvals_only=True)
    return sorted((v * peak for v in found), reverse=True)


def close(found: float, true: mpmath.mpf, tolerance: mpmath.mpf | float) -> bool:
    """Whether two numbers agree to an absolute tolerance, at 50 digits."""
    return math.isfinite(found) and abs(mpmath.mpf(found) - true) <= tolerance


def rank_of(values: list[mpmath.mpf], share: float) -> int | None:
    """Number of eigenvalues above a share of the largest; None where one is too near to say."""
    cut = values[0] * share
    if any(cut / 30 < value < cut * 30 for value in values):
        return None
    return sum(value > cut for value in values)
