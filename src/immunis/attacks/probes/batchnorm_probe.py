"""A linear probe behind a BatchNorm layer, trained by Adam."""

from __future__ import annotations

import torch
from torch import nn

from immunis.attacks.contract import Arena, Attack, Point, Settings
from immunis.attacks.probes.shared import linear_probe, minibatch_curve


def run(arena: Arena, settings: Settings) -> list[Point]:
    """BatchNorm learns scale and shift of every feature together with the probe."""
    features = arena.features().scaled()
    probe = nn.Sequential(nn.BatchNorm1d(features.dimension), linear_probe(features))
    optimizer = torch.optim.Adam(probe.parameters(), lr=settings["rate"])
    return minibatch_curve(features, probe, optimizer)


ATTACK = Attack(
    "batchnorm_probe",
    "linear probe through BatchNorm",
    run,
    lambda arena: {"rate": (0.01, 0.001, 0.1)},
)
