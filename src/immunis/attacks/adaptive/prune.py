"""Set the smallest weights of every layer to zero, then probe."""

import torch

from immunis.attacks.contract import Arena, Attack, Made, Searched, Settings
from immunis.attacks.reading import readings, reread


def features(arena: Arena, settings: Settings) -> Made:
    """Drop a share of each weight matrix by magnitude."""
    cut = arena.cut.copy()
    with torch.no_grad():
        for weight in cut.model.parameters():
            dropped = int(settings["share"] * weight.numel())
            if weight.ndim > 1 and dropped:
                size = weight.abs()
                weight[size <= size.flatten().kthvalue(dropped).values] = 0.0
    return reread(arena, cut)


SETTINGS: Searched = {"share": (0.3, 0.6), "read": readings}
ATTACK = Attack(settings=SETTINGS, features=features, place=12)
