"""Amplify suspiciously quiet directions of the features, then probe."""

import torch
from torch import Tensor

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.features import whiten_flops
from immunis.attacks.learning import train_linear
from immunis.theory.gram import gram_of
from immunis.theory.spectrum import eigh, relative_cutoff


def run(arena: Arena, settings: Settings) -> Curve:
    """Raise every direction whose variance is below ``level`` of the mean up to it, then Adam."""
    features = arena.features()
    moments = gram_of(features.z)
    values, vectors = eigh(moments.scatter / features.samples)
    level = settings["level"] * float(values.clamp(min=0).mean())
    cutoff = values[0] * relative_cutoff(len(values), moments.epsilon)
    quiet = (values > cutoff) & (values < level)
    gain = torch.where(quiet, (level / values.clamp(min=1e-300)).sqrt(), torch.ones_like(values))

    def amplify(z: Tensor) -> Tensor:
        return (z.double() - moments.mean) @ (vectors * gain)

    loud = features.map(amplify, whiten_flops(features.samples, features.dimension))
    return train_linear(loud.scaled(), settings["rate"])


ATTACK = Attack(run, {"level": (0.01, 1.0), "rate": (0.01, 0.1)}, anticipated=True, place=1)
