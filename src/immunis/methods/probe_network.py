"""*Probe* (ours): leave the best linear probe nothing to read, at one depth or several.

ρ is the share of the harmful labels' variance that a ridge probe explains; it is invariant to
invertible linear maps of the features, so no whitening or preconditioning brings it back.
Of random nonlinear features of the features (``lift``) ρ is what kernels and small networks read,
of rows brought to one length (``even``) what is read where a few rows are much longer than most.
What neighbours say of labels there is ν (``near``). Besides labels they may be asked of what the
original's features say of them (``recall``).
The primary loss and distillation to the original's logits keep the model what it was; ``keep``
holds its primary features near where they were, and ``hold`` lets none of their directions shrink,
so that the two together bound κ(H_P).
Drawing harmful features together (``collapse``) carries over to rows that were not trained on: it
asks what kind of input a row is, where hiding each row's label can be learned by heart.
Simulated attacker steps raise ρ first, so that what is minimised is what little tuning finds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from immunis.core.distributed import joined, summed, summed_with_gradient, total_rows, world
from immunis.core.errors import NumericalError, SettingsError
from immunis.core.settings import require
from immunis.models.cut import Cut
from immunis.theory.feature_maps import even, fourier, white
from immunis.theory.neighbours import nu
from immunis.theory.regularizers import closed_form
from immunis.theory.rho import rho
from immunis.training.objective import SUPERVISED, Attacker, Objective, Terms, View

WIDTH = 0.5  # of the kernel that lifted features stand for, over the number of features
STILL = 1e-6  # share of the mean square that stands for the variance of features without any
HELD = 1e-9  # share of the original's mean eigenvalue down to which directions are held
LEAST = 0.01  # share of the primary features' variance below which collapse asks for no more


@dataclass(frozen=True)
class Settings:
    """Settings of ``probe``.

    Attributes:
        weight: of ρ, averaged over the depths.
        depths: number of places where ρ is taken: the features, then the outputs of the
            stages below the last, going down.
        ridge: damping of ρ relative to the mean eigenvalue.
        floor: absolute damping, which keeps the solve stable when features collapse; rows shorter
            than its root a feature stay short where rows are brought to one length.
        lift: number of random nonlinear features of white features on which ρ is taken too, with
            the same weight; 0 for none. A step needs more harmful samples than that.
        lift_ridge: damping of that ρ relative to the mean eigenvalue.
        even: take ρ of rows brought to one length too, the mean of two: as they are, and made white
            and brought to one length again, as attackers do; with ``lift``, ρ of the latter lifted.
        near: weight of ν of rows brought to one length, likewise the mean of two, each at least 0:
            below, neighbours would be made to differ, which can be read as well.
        recall: take every ρ and ν of the labels and of what a ridge probe of the original's
            features (damping 0.03), fitted to the step's rows, says of them: the mean of both, also
            in the curves. Labels of few rows can be hidden by heart; what the original makes of
            rows is to be hidden in all. Needs several times as many harmful rows as features.
        collapse: weight of ``log(v_H/v_P + 0.01)``, v the total variance of either task's features.
        distillation: weight of the divergence from the original's logits.
        keep: weight of ``mean‖z − z⁰‖²/v⁰`` over the primary batch, z⁰ the original's features
            and v⁰ their total variance; for frozen BatchNorm statistics, as is the default.
        hold: weight of ``tr(H⁻¹M)/D``, H and M the second moments of z and of z − z⁰ over the
            primary batch, which needs more rows than features.
        attacker_steps: simulated attacker steps before ρ is taken once more; 0 for none.
        attacker_rate: size of such a step relative to the parameters.
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
    attacker_rate: float = 0.01

    def __post_init__(self) -> None:
        """Check the ranges."""
        floats = "weight", "ridge", "floor", "lift_ridge", "distillation", "attacker_rate"
        for name in (*floats, "near", "collapse", "keep", "hold", "lift", "attacker_steps"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"{name}={value}: need >= 0")
        require(self.depths >= 1, f"depths={self.depths}: need >= 1")


def objective(settings: Settings, cut: Cut) -> Objective:
    """``L(D_P) + KL + weight·mean_l ρ_l`` and, where asked for, some terms more.

    They are weight·ρ after the attacker's steps, weight·ρ of lifted features, of rows of one length
    and of those lifted, ``near·ν`` of rows of one length, ``collapse·log(v_H/v_P + 0.01)``,
    ``keep·mean‖z_P − z_P⁰‖²/v_P⁰`` and ``hold·tr(H_P⁻¹M_P)/D``.
    """
    places = ("", *reversed(cut.stages[:-1]))
    require(
        settings.depths <= len(places),
        f"depths={settings.depths}: the model has {len(places)} stages to look at",
    )
    layers = places[: settings.depths]

    def readable(view: View) -> Tensor:
        found = [
            rho(view.harmful[layer], view.targets, settings.ridge, settings.floor, across=True)
            for layer in layers
        ]
        return sum(found[1:], found[0]) / len(found)

    def lifted(z: Tensor, targets: Tensor) -> Tensor:
        ridge = settings.lift_ridge, settings.floor
        return rho(fourier(z, settings.lift, WIDTH / z.shape[1]), targets, *ridge)

    def beyond(z: Tensor, targets: Tensor) -> Terms:
        """What others read than linear probes of features as they are."""
        found, damping = {}, (settings.ridge, settings.floor)
        if settings.lift:
            found["rho_lifted"] = lifted(white(z, *damping), targets)
        if not (settings.even or settings.near):
            return found
        rows = even(z, settings.floor)
        size = rows.detach().square().mean(1, keepdim=True).sqrt()  # 1; less below the floor
        flat = size * even(white(rows, *damping))
        if settings.even:
            found["rho_even"] = (rho(rows, targets, *damping) + rho(flat, targets, *damping)) / 2
        if settings.even and settings.lift:
            found["rho_even_lifted"] = lifted(flat, targets)
        if settings.near:
            read = torch.stack([nu(seen, targets) for seen in (rows, flat)])
            found["near"] = read.clamp(min=0.0).mean()
        return found

    def terms(view: View) -> Terms:
        found = {SUPERVISED: view.supervised, "rho": readable(view)}
        if settings.lift or settings.even or settings.near:
            found |= beyond(joined(view.harmful[""]), joined(view.targets))
        if settings.collapse:
            harmful, primary = (total_variance(z[""]) for z in (view.harmful, view.primary))
            found["collapse"] = (harmful / primary + LEAST).log()
        if settings.distillation:
            found["distillation"] = view.distillation
        if settings.keep:
            found["keep"] = moved(view)
        if settings.hold:
            found["hold"] = shrunk(view)
        return found

    attacked, lift = settings.attacker_steps > 0, settings.lift > 0
    asked = {  # which of ρ's terms there are
        "rho": True, "rho_attacked": attacked, "rho_lifted": lift,
        "rho_even": settings.even, "rho_even_lifted": settings.even and lift,
    }  # fmt: skip
    return Objective(
        terms,
        {
            **{name: settings.weight for name, there in asked.items() if there},
            "near": settings.near,
            "collapse": settings.collapse,
            "distillation": settings.distillation,
            "keep": settings.keep,
            "hold": settings.hold,
        },
        after=(lambda view: {"rho_attacked": readable(view)}) if attacked else (lambda view: {}),
        attacker=(
            Attacker(lambda view: -readable(view), settings.attacker_steps, settings.attacker_rate)
            if attacked
            else None
        ),
        layers=layers,
        teacher=max(settings.distillation, settings.keep, settings.hold) > 0,
        recall=settings.recall and max(settings.weight, settings.near) > 0,
        needs={
            "harmful": max(cut.width, settings.lift),
            "primary": cut.width if settings.hold else 0,
        },
        judge="probe",
    )


def moved(view: View) -> Tensor:
    """``mean‖z − z⁰‖²/v⁰``: how far primary features are from the original's, z⁰."""
    assert view.teacher is not None
    before = view.teacher[1]
    distance = (view.primary[""].float() - before).square().sum(1).mean()
    spread = total_variance(before, STILL).to(distance)
    return distance / spread.clamp(min=torch.finfo(distance.dtype).tiny)


def shrunk(view: View) -> Tensor:
    """``tr(H⁻¹M)/D`` with ``H = mean zzᵀ`` and ``M = mean (z − z⁰)(z − z⁰)ᵀ``, in float64.

    How far primary features are from the original's, z⁰, each direction measured by what is left
    of it: one that shrinks s times weighs (s − 1)², and one that grows less than 1. Where the value
    is v, ``H⁰ ⪯ (1 + √(Dv))²·(H + εI)``, ε a billionth of the original's mean eigenvalue: no
    eigenvalue has fallen further. That none has grown is for ``keep``. The gradient in Z is
    ``(2/nD)·((Z − Z⁰)H⁻¹ − Z·H⁻¹MH⁻¹)``, with H damped.

    Raises:
        SettingsError: where the batch has no more rows than there are features.
        NumericalError: where features are not finite.
    """
    assert view.teacher is not None
    features = view.primary[""]
    z = features.detach().to(torch.float64)
    apart = z - view.teacher[1].to(z)
    count, d = total_rows(z), z.shape[1]
    if not count > d:
        raise SettingsError(
            f"hold: a step has {count} primary rows for {d} features; raise training's batch "
            "above that, or leave hold at 0."
        )
    h, m = (summed(x.mT @ x) / count for x in (z, apart))
    size = summed(view.teacher[1].to(z).square().sum()) / count / d
    damping = torch.where(size > 0, HELD * size, 1.0)  # without features before, none to hold
    factor, failed = torch.linalg.cholesky_ex(
        h + damping * torch.eye(d, dtype=h.dtype, device=h.device)
    )
    if int(failed):
        raise NumericalError("hold: the primary features hold NaN or infinities; lower the rate.")
    left = torch.cholesky_solve(m, factor)  # H⁻¹M
    both = torch.cholesky_solve(left.mT, factor)  # H⁻¹MH⁻¹
    gradient = torch.cholesky_solve(apart.mT, factor).mT - z @ both
    scale = 2 * world() / (count * d)  # see immunis.processes
    return closed_form(features, left.diagonal().sum() / d, (scale * gradient).to(features))


def total_variance(features: Tensor, still: float = 0.0) -> Tensor:
    """``(1 + still)·mean‖z‖² − ‖mean z‖²`` over the rows of all processes, in float64."""
    z = features.to(torch.float64)
    count = total_rows(z)
    mean = summed_with_gradient(z.sum(0)) / count
    return (1 + still) * summed_with_gradient(z.square().sum()) / count - mean.square().sum()
