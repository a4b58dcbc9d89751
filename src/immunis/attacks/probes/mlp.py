"""A two-layer network on frozen features."""

from __future__ import annotations

import torch
from torch import nn

from immunis.attacks.contract import Arena, Attack, Point, Settings
from immunis.attacks.preprocess import bases, in_basis
from immunis.attacks.probes.shared import minibatch_curve


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Train a ReLU network on features in some basis by Adam with decoupled weight decay."""
    features, meter = in_basis(arena, settings["basis"])
    hidden = min(256, max(64, 2 * features.dimension))
    probe = nn.Sequential(
        nn.Linear(features.dimension, hidden), nn.ReLU(), nn.Linear(hidden, features.outputs)
    )
    optimizer = torch.optim.AdamW(probe.parameters(), lr=settings["rate"], weight_decay=0.01)
    return minibatch_curve(features, probe, optimizer, meter=meter)


ATTACK = Attack(
    "mlp",
    "two-layer network on features",
    run,
    lambda arena: {
        "rate": (0.003, 0.001, 0.01) if arena.patient else (0.003,),
        "basis": bases(arena),
    },
)
