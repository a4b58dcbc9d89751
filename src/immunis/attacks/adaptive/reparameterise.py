"""Insert a linear layer before the probe: descent then follows another path."""

from __future__ import annotations

import torch
from torch import nn

from immunis.attacks.contract import Arena, Attack, Point, Settings
from immunis.attacks.probes.shared import linear_probe, minibatch_curve


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Train ``z ↦ V(Uz)`` with U starting at the identity: linear, but preconditioned by depth."""
    features = arena.features().scaled()
    inserted = nn.Linear(features.dimension, features.dimension)
    nn.init.eye_(inserted.weight)
    nn.init.zeros_(inserted.bias)
    probe = nn.Sequential(inserted, linear_probe(features))
    optimizer = torch.optim.Adam(probe.parameters(), lr=settings["rate"])
    return minibatch_curve(features, probe, optimizer)


ATTACK = Attack(
    "reparameterise",
    "insert a linear layer, train both",
    run,
    lambda arena: {"rate": (0.001, 0.01)},
)
