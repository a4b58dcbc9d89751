"""A two-layer network on frozen features."""

import torch
from torch import nn

from immunis.attacks.contract import Arena, Attack, Curve, Settings, if_patient
from immunis.attacks.features import bases
from immunis.attacks.learning import minibatches


def run(arena: Arena, settings: Settings) -> Curve:
    """Train a ReLU network by Adam with decoupled weight decay."""
    features = arena.features().in_basis(settings["basis"])
    hidden = min(256, max(64, 2 * features.dimension))
    first, last = nn.Linear(features.dimension, hidden), nn.Linear(hidden, features.outputs)
    probe = nn.Sequential(first, nn.ReLU(), last)
    optimizer = torch.optim.AdamW(probe.parameters(), lr=settings["rate"], weight_decay=0.01)
    return minibatches(features, probe, optimizer)


SETTINGS = {"rate": if_patient(0.003, 0.001, 0.01), "basis": bases}
ATTACK = Attack(run, SETTINGS, anticipated=True, preset="quick", place=11, telling=2)
