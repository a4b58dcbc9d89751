"""*Probe* (ours): leave the best linear probe nothing to read, at one depth or several.

ρ is the share of the harmful labels' variance that a ridge probe explains; it is invariant to
invertible linear maps of the features, so no whitening or preconditioning brings it back.
The primary loss and distillation to the original's logits keep the model what it was.
Simulated attacker steps raise ρ first, so that what is minimised is what little tuning finds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from immunis.features import Cut
from immunis.objectives.base import SUPERVISED, Attacker, Objective, Terms, View
from immunis.readable import rho
from immunis.regularizers import feature_hessian, kappa
from immunis.settings import require


@dataclass(frozen=True)
class Settings:
    """Settings of ``probe``.

    Attributes:
        weight: of ρ, averaged over the depths.
        depths: number of places where ρ is taken: the features, then the outputs of the
            stages below the last, going down.
        ridge: damping of ρ relative to the mean eigenvalue.
        floor: absolute damping, which keeps the solve stable when features collapse.
        distillation: weight of the divergence from the original's logits.
        attacker_steps: simulated attacker steps before ρ is taken once more; 0 for none.
        attacker_rate: size of such a step relative to the parameters.
        conditioning: weight of ``log κ(H_P) − log κ(H_H)``, which raises RIR as well.
    """

    weight: float = 10.0
    depths: int = 1
    ridge: float = 1e-5
    floor: float = 1e-9
    distillation: float = 1.0
    attacker_steps: int = 0
    attacker_rate: float = 0.01
    conditioning: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("weight", "ridge", "floor", "distillation", "attacker_rate", "conditioning"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"{name}={value}: need >= 0")
        require(self.depths >= 1, f"depths={self.depths}: need >= 1")
        require(self.attacker_steps >= 0, f"attacker_steps={self.attacker_steps}: need >= 0")


def objective(settings: Settings, cut: Cut) -> Objective:
    """``L(D_P) + KL + weight·mean_l ρ_l (+ weight·ρ at θ*) + conditioning·(log κ_P − log κ_H)``."""
    layers = ("", *reversed(cut.stages[:-1]))[: settings.depths]

    def readable(view: View) -> Tensor:
        found = [
            rho(view.harmful[layer], view.targets, settings.ridge, settings.floor, across=True)
            for layer in layers
        ]
        return sum(found[1:], found[0]) / len(found)

    def terms(view: View) -> Terms:
        found = {SUPERVISED: view.supervised, "rho": readable(view)}
        if settings.distillation:
            found["distillation"] = view.distillation
        if settings.conditioning:
            hessians = (feature_hessian(z[""], across=True) for z in (view.primary, view.harmful))
            log_kappas = [kappa(hessian).log() for hessian in hessians]
            found["conditioning"] = log_kappas[0] - log_kappas[1]
        return found

    attacked = settings.attacker_steps > 0
    return Objective(
        terms,
        {
            "rho": settings.weight,
            "rho_attacked": settings.weight,
            "distillation": settings.distillation,
            "conditioning": settings.conditioning,
        },
        after=(lambda view: {"rho_attacked": readable(view)}) if attacked else (lambda view: {}),
        attacker=(
            Attacker(lambda view: -readable(view), settings.attacker_steps, settings.attacker_rate)
            if attacked
            else None
        ),
        layers=layers,
        teacher=settings.distillation > 0,
        judge="probe",
    )
