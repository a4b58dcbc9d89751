"""*Probe* (ours): train a network so that no probe of any depth reads the harmful labels.

ρ is the share of the harmful labels' variance that a ridge probe explains. Invertible linear maps
of the features do not change it, so no whitening or preconditioning brings the labels back. The
loss sums the mean ρ over depths, the primary loss and the distance from the original's answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from immunis.core.distributed import total_rows
from immunis.core.settings import require_least
from immunis.data.task import Task
from immunis.methods.base import Method
from immunis.models.cut import Cut
from immunis.models.positions import GRID
from immunis.theory.feature_maps import narrowed
from immunis.theory.probes import rho
from immunis.training.objective import SUPERVISED, Objective, Terms, View

RIDGE, FLOOR = 1e-3, 1e-9  # damping of ρ: relative to the mean eigenvalue, and absolute
ROWS = 3  # least harmful rows per feature; wider features are projected at random in each step
LABELS, ANSWERS = 0.5, 2.0  # weights of the primary loss and of the original's answers
BATCH, HARMFUL, EPOCHS = 256, 1024, 40  # rows of a step; passes over the primary rows
STEPS = 300, 2500  # fewest and most
IMAGE = 24  # pixels along a side, from which on images are zoomed and flipped
BATCHNORM = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of ``probe``.

    Attributes:
        weight: weight of ρ. If left out, it is raised until the held-out primary score falls by
            more than the tolerance below that of the same training without ρ.
        start: weights to begin with: those given (``"given"``), a mix of them with fresh ones
            (``"noised"``), or fresh ones (``"fresh"``). The answers of the original are taught.
        depths: most stages at which ρ is taken; the last one is always among them.
    """

    weight: float | None = None
    start: Literal["given", "noised", "fresh"] = "given"
    depths: int = 4

    def __post_init__(self) -> None:
        require_least(self, 0, "weight")
        require_least(self, 1, "depths")


def training(model: nn.Module, primary: Task) -> Mapping[str, Any]:
    """Return how a network is trained unless the user says otherwise.

    All layers train, at a large rate, for forty passes over the primary rows, but at least 300 and
    at most 2,500 steps. Networks with BatchNorm take SGD, others AdamW; encoders of tokens, which
    large rates destroy, a tenth of the rate.
    """
    steps = EPOCHS * math.ceil((primary.train.count() or 0) / BATCH)
    shape, parts = primary.input_shape, [*model.modules()]
    kind, rate = ("sgd", 0.2) if any(isinstance(m, BATCHNORM) for m in parts) else ("adamw", 1e-3)
    if kind == "adamw" and any(isinstance(m, nn.Embedding) for m in parts):
        rate = 1e-4
    return {
        "layers": ["*"],
        "steps": min(max(steps, STEPS[0]), STEPS[1]),
        "batch": BATCH,
        "harmful_batch": HARMFUL,
        "weight_decay": 5e-4,
        "warmup": 0.2,
        "clip": 5.0,
        "batchnorm": "joint",
        "augment": len(shape) == 3 and min(shape[1:]) >= IMAGE,
        "evaluate": 5,
        "optimizer": kind,
        "rate": rate,
    }


def depths(cut: Cut, most: int) -> tuple[str, ...]:
    """Return where ρ is taken: the features, and a coarse grid of stages, evenly spread."""
    count = len(cut.stages)
    chosen = [math.ceil(place * count / most) - 1 for place in range(1, most + 1)]
    stages = [cut.stages[index] for index in sorted(set(chosen) & set(range(count)))]
    return "", *(stage + GRID for stage in stages)


def objective(settings: NetworkSettings, cut: Cut) -> Objective:
    """Return ``½·L(D_P) + 2·KL(original ‖ model) + weight·mean_l ρ(Z_l, Y_H)``."""
    layers = depths(cut, settings.depths)

    def terms(view: View) -> Terms:
        found = {SUPERVISED: view.supervised, "distillation": view.distillation}
        if settings.weight:
            shares = [visible(view.harmful[name], view.targets) for name in layers]
            found["rho"] = torch.stack(shares).mean()
        return found

    return Objective(
        terms,
        {SUPERVISED: LABELS, "distillation": ANSWERS, "rho": settings.weight or 0.0},
        layers=layers,
        needs={"harmful": 0},  # what is wider than rows allow is projected
        teacher=True,
        start=settings.start,
        judge="probe" if settings.weight else "primary",
    )


def visible(features: Tensor, targets: Tensor) -> Tensor:
    """Return ρ of features, or of fresh random combinations of features wider than rows allow.

    ρ of n rows in D dimensions nears 1 as D nears n, whatever the labels. Combinations that change
    with every step have rows to spare, and hide nothing for long.
    """
    most = max(1, total_rows(features) // ROWS)
    draw = torch.Generator(features.device).manual_seed(torch.initial_seed())  # one for all ranks
    return rho(narrowed(features, most, draw), targets, RIDGE, FLOOR, across=True)


SUMMARY = "label-aware training of a network: nothing for a probe of any layer to read"
METHOD = Method(
    "probe",
    SUMMARY,
    network=NetworkSettings,
    objective=objective,
    training=training,
    searched="weight",
    order=7,
)
