"""Linear probing by Adam on cross-entropy."""

from __future__ import annotations

import torch

from immunis.attacks.contract import Arena, Attack, Point, Settings
from immunis.attacks.probes.shared import linear_probe, minibatch_curve


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Train a linear probe on features of unit mean square; cosine schedule."""
    features = arena.features().scaled()
    probe = linear_probe(features)
    optimizer = torch.optim.Adam(probe.parameters(), lr=settings["rate"])
    return minibatch_curve(features, probe, optimizer)


ATTACK = Attack("adam", "linear probe by Adam", run, lambda arena: {"rate": (0.01, 0.001, 0.1)})
