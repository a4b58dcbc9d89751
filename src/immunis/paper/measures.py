"""Both condition numbers of a linear extractor on a task pair, and the norm-ratio curves.

*Released* is the κ of the paper's code (``reference_condition_number``), *honest* is σ_max over
the smallest non-zero singular value, with the rank taken from the inputs: θᵀKθ has the rank of K
for every invertible θ, so no direction can drop out of κ and flatter it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from immunis.core.errors import NumericalError, RankWarning
from immunis.data.task import Task
from immunis.theory.descent import norm_ratio_curve
from immunis.theory.frontier import ceiling, whiten
from immunis.theory.gram import Gram, as_extractor, gram, symmetric
from immunis.theory.measure import RIDGE
from immunis.theory.rir import rir
from immunis.theory.spectrum import Spectrum, eigh, quiet_spectrum, reference_condition_number


@dataclass(frozen=True)
class Side:
    """One task's Gram matrix with everything its κ needs."""

    gram: Gram

    @cached_property
    def matrix(self) -> Tensor:
        """K (D×D)."""
        return self.gram.matrix()

    @cached_property
    def spectrum(self) -> Spectrum:
        """Spectrum of the inputs."""
        return quiet_spectrum(self.gram)

    @cached_property
    def factor(self) -> Tensor:
        """L with ``K = LLᵀ``, one column per non-zero eigenvalue."""
        values, vectors = eigh(self.matrix)
        rank = self.spectrum.rank
        return vectors[:, :rank] * values[:rank].sqrt()

    @cached_property
    def released(self) -> float:
        """κ of the inputs as the released code gives it."""
        return reference_condition_number(self.matrix)

    def figures(self) -> dict[str, Any]:
        """What a record keeps of the inputs."""
        return {
            "released": self.released,
            "released_tenfold": reference_condition_number(100 * self.matrix),
            "honest": self.spectrum.condition_number,
            "relative_error": self.spectrum.relative_error,
            "rank": self.spectrum.rank,
            "dimension": self.spectrum.dimension,
            "samples": self.gram.samples,
        }

    def kappas(self, theta: Tensor) -> dict[str, tuple[float, float]]:
        """Return κ(K) and κ(θᵀKθ): released, honest."""
        root = theta.T @ self.factor  # θᵀKθ = root·rootᵀ, and root has twice the digits
        sigma = torch.linalg.svdvals(root)
        if not float(sigma[-1]) > 0:
            raise NumericalError("θ is singular on a task's own directions: κ is infinite.")
        released = reference_condition_number(symmetric(root @ root.T))
        honest = float(sigma[0] / sigma[-1]) ** 2
        return {
            "released": (self.released, released),
            "honest": (self.spectrum.condition_number, honest),
        }


@dataclass(frozen=True)
class Pair:
    """A primary and a harmful task as Gram matrices of their inputs."""

    primary: Side
    harmful: Side

    @classmethod
    def of(cls, primary: Gram, harmful: Gram) -> Pair:
        """Wrap two Grams."""
        return cls(Side(primary), Side(harmful))

    def figures(self) -> dict[str, Any]:
        """What a record keeps of the pair itself: both κ, the ceiling RIR*, free directions."""
        grams = self.primary.gram, self.harmful.gram
        return {
            "primary": self.primary.figures(),
            "harmful": self.harmful.figures(),
            "ceiling": ceiling(*grams),
            "ridge_ceiling": ceiling(*grams, RIDGE),
            "free_directions": self.harmful.spectrum.free_directions(self.primary.spectrum),
        }

    def spectra(self) -> dict[str, Any]:
        """All eigenvalues of both Grams, noise included, and κ(M) over what both tasks use."""
        return {
            "eigenvalues": {
                name: side.spectrum.eigenvalues.tolist()
                for name, side in (("primary", self.primary), ("harmful", self.harmful))
            },
            "kappa_m": whiten(self.primary.spectrum, self.harmful.spectrum).condition_number,
        }

    def ratios(self, theta: Tensor) -> dict[str, dict[str, float]]:
        """Factors (i) and (ii) and RIR of θ against the inputs, under both κ (paper, eq. 9)."""
        harmful, primary = self.harmful.kappas(theta), self.primary.kappas(theta)
        found = {kind: rir(primary=primary[kind], harmful=harmful[kind]) for kind in harmful}
        return {
            kind: {"harmful": ratio.harmful, "primary": ratio.primary, "rir": ratio.value}
            for kind, ratio in found.items()
        }


def norm_ratios(tasks: tuple[Task, Task], theta: Tensor, steps: int) -> dict[str, list[float]]:
    """Norm-ratio curves of probing both tasks through θ by exact line search (paper, eq. 10)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)  # ranks are in the record
        return {
            name: norm_ratio_curve(gram(task, as_extractor(theta)), steps).tolist()
            for name, task in zip(("primary", "harmful"), tasks, strict=True)
        }
