"""Mix fresh weights into the model's, tune it on public primary data, then probe."""

import torch

from immunis.attacks.contract import Arena, Attack, Made, Searched, Settings
from immunis.attacks.reading import readings, reread
from immunis.attacks.retrain import RATES, on_primary
from immunis.models.zoo import untrained


def features(arena: Arena, settings: Settings) -> Made:
    """Set the extractor's weights to ``(1 − a)·θ + a·θ₀`` with θ₀ drawn as at construction."""
    cut, amount = arena.cut.copy(), settings["amount"]
    fresh = dict(untrained(arena.cut, arena.seed).model.named_parameters())
    own = f"{cut.head}."
    with torch.no_grad():
        for name, weight in cut.model.named_parameters():
            weight.lerp_(fresh[name], 0.0 if name.startswith(own) else amount)
    return reread(arena, cut, on_primary(arena, cut, settings["rate"]))


SETTINGS: Searched = {"amount": (0.3, 0.7), "rate": RATES, "read": readings}
ATTACK = Attack(settings=SETTINGS, features=features, retrains=True, place=10)
