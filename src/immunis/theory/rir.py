"""RIR, the paper's metric: by how much harder a defence makes the harmful task than the primary."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from immunis.core.errors import RankWarning
from immunis.core.records import RANKS_DIFFER
from immunis.data.task import Task
from immunis.theory.gram import as_extractor, paired_grams
from immunis.theory.spectrum import Spectrum


@dataclass(frozen=True)
class RelativeImmunizationRatio:
    """RIR and its two factors (paper, eqs. 9 and 11).

    Where a rank changes, κ before and after describe different subspaces: that factor and RIR are
    not defined, which is NaN here and null with its reason in a record.

    Attributes:
        harmful: factor (i), ``κ(H_H(θ_I))/κ(H_H(reference))``; large is immunized.
        primary: factor (ii), ``κ(H_P(θ_I))/κ(H_P(reference))``; at most 1 is no harm done.
        spectra: the spectra before and after, by ``"primary"`` and ``"harmful"``, if known.
    """

    harmful: float
    primary: float
    spectra: Mapping[str, tuple[Spectrum, Spectrum]] = field(default_factory=dict, repr=False)

    @property
    def value(self) -> float:
        """The ratio (i)/(ii)."""
        return self.harmful / self.primary

    @property
    def figures(self) -> dict[str, Any]:
        """Both factors and the ratio, as a record keeps them."""
        found = {"harmful": self.harmful, "primary": self.primary, "value": self.value}
        known = {name: None if math.isnan(value) else value for name, value in found.items()}
        return known if None not in known.values() else {**known, "reason": RANKS_DIFFER}


def rir(*, primary: tuple[float, float], harmful: tuple[float, float]) -> RelativeImmunizationRatio:
    """Return RIR from condition numbers, each task's as (before, after) (paper, eqs. 9 and 11).

    ``RIR = (κ_H'/κ_H)/(κ_P'/κ_P)``; NaN where a condition number is.

    >>> rir(primary=(10.0, 5.0), harmful=(2.0, 8.0)).value
    8.0
    """
    return RelativeImmunizationRatio(harmful[1] / harmful[0], primary[1] / primary[0])


def rir_of_spectra(spectra: Mapping[str, tuple[Spectrum, Spectrum]]) -> RelativeImmunizationRatio:
    """Return RIR from both tasks' spectra, (before, after); NaN where their ranks differ."""
    kappas = {
        role: (old.condition_number, new.condition_number if old.rank == new.rank else math.nan)
        for role, (old, new) in spectra.items()
    }
    return replace(rir(**kappas), spectra=spectra)


def relative_immunization_ratio(
    model: nn.Module | Tensor,
    primary: Task,
    harmful: Task,
    reference: nn.Module | Tensor | None = None,
) -> RelativeImmunizationRatio:
    """Return RIR of an extractor against the inputs, or against ``reference`` (RIR_θ₀).

    An extractor is an ``nn.Module`` or a matrix θ (``x ↦ xᵀθ``). Where a rank changes, warns with
    ``RankWarning`` and returns NaN.
    """
    before, after = (
        [Spectrum.of(moments) for moments in paired_grams(primary, harmful, as_extractor(each))]
        for each in (reference, model)
    )
    spectra = dict(zip(("primary", "harmful"), zip(before, after, strict=True), strict=True))
    for name, (old, new) in spectra.items():
        if old.rank != new.rank:
            warnings.warn(
                f"the rank of the {name} features went from {old.rank} to {new.rank}: κ describes "
                "another subspace, and RIR is not defined.",
                RankWarning,
                stacklevel=2,
            )
    return rir_of_spectra(spectra)
