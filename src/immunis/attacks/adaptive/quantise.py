"""Round every weight to few bits, then probe: what small weights have hidden is gone."""

import torch

from immunis.attacks.contract import Arena, Attack, Made, Searched, Settings
from immunis.attacks.reading import readings, reread


def features(arena: Arena, settings: Settings) -> Made:
    """Round to ``2^bits − 1`` levels between ± the largest weight of each output channel."""
    cut, levels = arena.cut.copy(), 2 ** (settings["bits"] - 1) - 1
    with torch.no_grad():
        for weight in cut.model.parameters():
            if weight.ndim > 1:
                step = weight.abs().amax(tuple(range(1, weight.ndim)), keepdim=True) / levels
                weight.copy_(torch.where(step > 0, (weight / step).round() * step, weight))
    return reread(arena, cut)


SETTINGS: Searched = {"bits": (8, 4), "read": readings}
ATTACK = Attack(settings=SETTINGS, features=features, place=11)
