"""RIR, the paper's metric: by how much harder a defence makes the harmful task than the primary."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from immunis.core.errors import RankWarning
from immunis.data.task import Task
from immunis.theory.gram import as_extractor, paired_grams
from immunis.theory.spectrum import Spectrum


@dataclass(frozen=True)
class RelativeImmunizationRatio:
    """RIR and its two factors (paper, eqs. 9 and 11).

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
    def figures(self) -> dict[str, float]:
        """Both factors and the ratio, as a record keeps them."""
        return {"harmful": self.harmful, "primary": self.primary, "value": self.value}


def rir(*, primary: tuple[float, float], harmful: tuple[float, float]) -> RelativeImmunizationRatio:
    """Return RIR from condition numbers, each task's as (before, after) (paper, eqs. 9 and 11).

    ``RIR = (κ_H'/κ_H)/(κ_P'/κ_P)``; NaN where a condition number is.

    >>> rir(primary=(10.0, 5.0), harmful=(2.0, 8.0)).value
    8.0
    """
    return RelativeImmunizationRatio(harmful[1] / harmful[0], primary[1] / primary[0])


def relative_immunization_ratio(
    model: nn.Module | Tensor,
    primary: Task,
    harmful: Task,
    reference: nn.Module | Tensor | None = None,
) -> RelativeImmunizationRatio:
    """Return RIR of an extractor against the inputs, or against ``reference`` (RIR_θ₀).

    An extractor is an ``nn.Module`` or a matrix θ (``x ↦ xᵀθ``). Warns with ``RankWarning`` where a
    rank changes.
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
                "another subspace, and RIR compares unlike things.",
                RankWarning,
                stacklevel=2,
            )
    kappas = {k: (old.condition_number, new.condition_number) for k, (old, new) in spectra.items()}
    return replace(rir(**kappas), spectra=spectra)
