"""*Probe* (ours): train a network so that the best probe finds nothing of the harmful labels.

ρ is the share of the harmful labels' variance that a ridge probe explains. Invertible linear maps
of the features do not change it, so no whitening or preconditioning brings the labels back. The
loss sums ρ, and what other attackers read, with terms that keep the primary task as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from immunis.core.distributed import joined, summed, summed_with_gradient, total_rows, world
from immunis.core.errors import NumericalError, SettingsError
from immunis.core.settings import require, require_least
from immunis.methods.base import Method
from immunis.models.cut import Cut
from immunis.theory.feature_maps import even, fourier, white
from immunis.theory.regularizers import closed_form
from immunis.theory.rho import nu, rho
from immunis.training.objective import SUPERVISED, Attacker, Objective, Terms, View

WIDTH = 0.5  # width of the kernel that lifted features stand for, over the number of features
STILL = 1e-6  # share of the mean square that stands for the variance of constant features
HELD = 1e-9  # damping of hold, as a share of the original's mean eigenvalue
LEAST = 0.01  # share of the primary features' variance below which collapse asks for no more
ATTACKER_RATE = 0.01  # size of a simulated attacker's step relative to the parameters


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of ``probe``.

    Attributes:
        weight: weight of ρ, and of each further ρ below.
        depths: number of places where ρ is taken: the features, then the stages below the last.
        ridge: damping of ρ relative to the mean eigenvalue.
        floor: absolute damping of ρ, which keeps the solve stable when features collapse.
        lift: number of random nonlinear features on which ρ is taken too, against kernels and
            small networks. A step needs more harmful rows than that.
        lift_ridge: damping of that ρ relative to the mean eigenvalue.
        even: take ρ of rows brought to one length too, as some attackers do.
        near: weight of ν, the share of the labels that a row's neighbours explain.
        recall: hide also what the original's features say of the labels, since labels of a few
            rows can be learned by heart. A step needs several harmful rows per feature.
        collapse: weight of a term that draws harmful features together, in new rows too.
        distillation: weight of the divergence from the original's logits.
        keep: weight of the distance of primary features from the original's.
        hold: weight of a term that lets no direction of the primary features shrink. With
            ``keep`` it bounds κ(H_P). A step needs more primary rows than features.
        attacker_steps: simulated attacker's steps before ρ is taken again, against fine-tuning.
    """

    weight: float = 10.0
    depths: int = 1
    ridge: float = 1e-5
    floor: float = 1e-9
    lift: int = 0
    lift_ridge: float = 1e-3
    even: bool = False
    near: float = 0.0
    recall: bool = False
    collapse: float = 0.0
    distillation: float = 1.0
    keep: float = 0.0
    hold: float = 0.0
    attacker_steps: int = 0

    def __post_init__(self) -> None:
        require_least(self, 1, "depths")
        require_least(self, 0, *(n for n in self.__dataclass_fields__ if n != "depths"))


def objective(settings: NetworkSettings, cut: Cut) -> Objective:
    """Return ``L(D_P) + weight·ρ + distillation·KL``, and the terms that the settings ask for."""
    places = ("", *reversed(cut.stages[:-1]))
    require(
        settings.depths <= len(places),
        f"depths={settings.depths}: the model has {len(places)} stages to look at",
    )
    layers, damping = places[: settings.depths], (settings.ridge, settings.floor)

    def mean_rho(view: View) -> Tensor:
        """``mean_l ρ(Z_l, Y)`` over the depths."""
        found = [rho(view.harmful[name], view.targets, *damping, across=True) for name in layers]
        return sum(found[1:], found[0]) / len(found)

    def lifted_rho(z: Tensor, targets: Tensor) -> Tensor:
        """``ρ(φ(Z), Y)``, φ random Fourier features."""
        lifted = fourier(z, settings.lift, WIDTH / z.shape[1])
        return rho(lifted, targets, settings.lift_ridge, settings.floor)

    def terms(view: View) -> Terms:
        found = {SUPERVISED: view.supervised, "rho": mean_rho(view)}
        if settings.lift or settings.even or settings.near:
            z, targets = joined(view.harmful[""]), joined(view.targets)
        if settings.lift:
            found["rho_lifted"] = lifted_rho(white(z, *damping), targets)
        if settings.even or settings.near:
            rows = even(z, settings.floor)
            size = rows.detach().square().mean(1, keepdim=True).sqrt()  # 1, less below the floor
            both = rows, size * even(white(rows, *damping))  # plain, and whitened as attackers do
        if settings.even:
            one, other = (rho(z, targets, *damping) for z in both)
            found["rho_even"] = (one + other) / 2
        if settings.even and settings.lift:
            found["rho_even_lifted"] = lifted_rho(both[1], targets)
        if settings.near:  # below 0 neighbours would be made to differ, which can be read as well
            found["near"] = torch.stack([nu(z, targets) for z in both]).clamp(min=0.0).mean()
        return found | {name: of(view) for name, of in OTHERS.items() if getattr(settings, name)}

    attacked, lift, even_rows = settings.attacker_steps > 0, settings.lift > 0, settings.even
    asked = {"rho": True, "rho_attacked": attacked, "rho_lifted": lift, "rho_even": even_rows}
    asked["rho_even_lifted"] = even_rows and lift
    weights = {name: settings.weight for name, there in asked.items() if there}
    weights |= {name: getattr(settings, name) for name in ("near", *OTHERS)}
    attacker = Attacker(lambda view: -mean_rho(view), settings.attacker_steps, ATTACKER_RATE)
    primary_rows = cut.width if settings.hold else 0
    return Objective(
        terms,
        weights,
        after=lambda view: {"rho_attacked": mean_rho(view)} if attacked else {},
        attacker=attacker if attacked else None,
        layers=layers,
        teacher=max(settings.distillation, settings.keep, settings.hold) > 0,
        recall=settings.recall and max(settings.weight, settings.near) > 0,
        needs={"harmful": max(cut.width, settings.lift), "primary": primary_rows},
        judge="probe",
    )


def collapse(view: View) -> Tensor:
    """Return ``log(v_H/v_P + 0.01)``, v the total variance of a task's features."""
    return (total_variance(view.harmful[""]) / total_variance(view.primary[""]) + LEAST).log()


def keep(view: View) -> Tensor:
    """Return ``mean‖z − z⁰‖²/v⁰`` of the primary features; z⁰ and v⁰ are the original's."""
    assert view.teacher is not None
    before = view.teacher[1]
    distance = (view.primary[""].float() - before).square().sum(1).mean()
    spread = total_variance(before, STILL).to(distance)
    return distance / spread.clamp(min=torch.finfo(distance.dtype).tiny)


def hold(view: View) -> Tensor:
    """Return ``tr(H⁻¹M)/D``, ``H = mean zzᵀ``, ``M = mean (z − z⁰)(z − z⁰)ᵀ``, in float64.

    z are the primary features and z⁰ the original's. A direction that shrinks s times counts
    (s − 1)², one that grows less than 1. A value of v bounds what every eigenvalue has lost:
    ``H⁰ ⪯ (1 + √(Dv))²·(H + εI)``, ε a billionth of the original's mean eigenvalue. The gradient in
    Z is ``(2/nD)·((Z − Z⁰)H⁻¹ − Z·H⁻¹MH⁻¹)``, with H damped by ε.
    """
    assert view.teacher is not None
    features = view.primary[""]
    z = features.detach().to(torch.float64)
    before = view.teacher[1].to(z)
    apart, count, d = z - before, total_rows(z), z.shape[1]
    if not count > d:
        raise SettingsError(
            f"hold: a step has {count} primary rows for {d} features; raise batch, or leave it out."
        )
    h, m = (summed(x.mT @ x) / count for x in (z, apart))
    size = summed(before.square().sum()) / count / d
    damping = torch.where(size > 0, HELD * size, 1.0)  # 1 where the original had no features
    eye = torch.eye(d, dtype=h.dtype, device=h.device)
    factor, failed = torch.linalg.cholesky_ex(h + damping * eye)
    if int(failed):
        raise NumericalError("hold: the primary features hold NaN or infinities; lower the rate.")
    left = torch.cholesky_solve(m, factor)  # H⁻¹M
    both = torch.cholesky_solve(left.mT, factor)  # H⁻¹MH⁻¹
    gradient = torch.cholesky_solve(apart.mT, factor).mT - z @ both
    scale = 2 * world() / (count * d)  # Fabric averages gradients over the processes
    return closed_form(features, left.diagonal().sum() / d, (scale * gradient).to(features))


def total_variance(features: Tensor, still: float = 0.0) -> Tensor:
    """Return ``(1 + still)·mean‖z‖² − ‖mean z‖²`` over the rows of all processes, in float64."""
    z = features.to(torch.float64)
    count = total_rows(z)
    mean = summed_with_gradient(z.sum(0)) / count
    return (1 + still) * summed_with_gradient(z.square().sum()) / count - mean.square().sum()


OTHERS: dict[str, Callable[[View], Tensor]] = {
    "collapse": collapse,
    "distillation": lambda view: view.distillation,
    "keep": keep,
    "hold": hold,
}
SUMMARY = "label-aware training of a network: nothing for a probe to read"
METHOD = Method("probe", SUMMARY, network=NetworkSettings, objective=objective, order=7)
