"""Linear probing by SGD with momentum on cross-entropy."""

from __future__ import annotations

import torch

from immunis.attacks.contract import Arena, Attack, Point, Settings
from immunis.attacks.probes.shared import linear_probe, minibatch_curve


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Train a linear probe on features of unit mean square; cosine schedule."""
    features = arena.features().scaled()
    probe = linear_probe(features)
    optimizer = torch.optim.SGD(probe.parameters(), lr=settings["rate"], momentum=0.9)
    return minibatch_curve(features, probe, optimizer)


ATTACK = Attack(
    "sgd", "linear probe by SGD with momentum", run, lambda arena: {"rate": (0.1, 0.01, 1.0)}
)
