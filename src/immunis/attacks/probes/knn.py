"""k nearest neighbours on frozen features: no training at all."""

from __future__ import annotations

import torch
from torch import Tensor

from immunis.attacks.contract import Arena, Attack, Point, Settings
from immunis.attacks.preprocess import bases, in_basis
from immunis.attacks.probes.shared import one_point


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Vote (or average) among the k nearest samples, by Euclidean distance or cosine."""
    features, meter = in_basis(arena, settings["basis"])
    targets = features.targets()
    k = min(settings["k"], features.samples)

    def direction(z: Tensor) -> Tensor:
        z = z.float()
        return torch.nn.functional.normalize(z, dim=1) if settings["metric"] == "cosine" else z

    known = direction(features.z)

    def predict(z: Tensor) -> Tensor:
        rows = []
        for block in direction(z).split(1024):
            near = torch.cdist(block, known).topk(k, largest=False).indices
            rows.append(targets[near].mean(1))
        return torch.cat(rows)

    blind = ("test",) if arena.blind else ()
    asked = sum(len(z) for part, (z, _) in features.parts.items() if part not in blind)
    flops = 2.0 * asked * features.samples * features.dimension
    return one_point(features, flops, predict, meter)


ATTACK = Attack(
    "knn",
    "k nearest neighbours on features",
    run,
    lambda arena: {
        "k": (5, 1, 20) if arena.patient else (5,),
        "metric": ("euclidean", "cosine"),
        "basis": bases(arena),
    },
    closed_form=True,
)
