"""*Erase* (ours): shrink what the harmful labels can be read from, and nothing more.

Least-squares concept erasure (Belrose et al. 2023) is the smallest change of the features, in the
harmful data's own metric, that leaves no linear probe anything to find. Scaling the erased subspace
by ε instead of 0 keeps θ invertible: the primary head compensates exactly, while a probe must climb
a Hessian in which the labels' directions are ε² as steep.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from immunis.core.errors import InputError
from immunis.core.settings import require
from immunis.methods.base import LinearProblem, Method, Solution
from immunis.theory.gram import Gram
from immunis.theory.spectrum import eigh, relative_cutoff


@dataclass(frozen=True)
class Settings:
    """``strength``: ε from 1 (nothing is changed) to 0 (full erasure; θ becomes singular)."""

    strength: float = 1e-3

    def __post_init__(self) -> None:
        require(0 <= self.strength <= 1, f"strength={self.strength}: expected 0 <= strength <= 1")


def eraser(gram: Gram, strength: float = 0.0) -> tuple[Tensor, int]:
    """Return ``P = I − (1−ε)·W⁺·UUᵀ·W`` (D×D, applied as ``z ↦ Pz``) and the erased rank.

    ``W = Σ_zz^{-1/2}`` on the range of Σ_zz, and U an orthonormal basis of ``W·Σ_zy``.

    Raises:
        InputError: if the labels are constant or share nothing with the features.
    """
    if not float(gram.target_scatter.trace()) > 0:
        raise InputError("the harmful labels are constant; erasure needs at least two classes.")
    values, vectors = eigh(gram.scatter / gram.samples)
    cutoff = relative_cutoff(gram.dimension, gram.epsilon)
    keep = values > values[0] * cutoff
    basis, root = vectors[:, keep], values[keep].sqrt()
    whitened_cross = (basis.T @ gram.cross_scatter) / gram.samples / root[:, None]
    u, s, _ = torch.linalg.svd(whitened_cross, full_matrices=False)
    total = float(gram.target_scatter.trace() / gram.samples) ** 0.5
    u = u[:, s > total * cutoff**0.5]  # singular values are in units of the targets' deviation
    if not u.shape[1]:
        raise InputError("features and harmful labels are uncorrelated: there is nothing to erase.")
    left, right = basis * root @ u, (basis / root @ u).T
    eye = torch.eye(gram.dimension, dtype=torch.float64)
    return eye - (1 - strength) * left @ right, u.shape[1]


def solve(problem: LinearProblem, settings: Settings) -> Solution:
    """Return ``θ = θ₀Pᵀ``, with P fitted on the harmful features ``xᵀθ₀``."""
    projection, rank = eraser(problem.harmful.transform(problem.theta), settings.strength)
    return Solution(problem.theta @ projection.T, {"erased_rank": rank})


SUMMARY = "closed-form, label-aware: shrink the harmful labels"
DEMO = {"erase ε=0.001": {}, "erase ε=0": {"strength": 0.0}}
METHOD = Method("erase", SUMMARY, Settings, solve, order=6, demo=DEMO)
