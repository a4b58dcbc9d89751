"""Amplify suspiciously quiet directions of the features, then probe."""

import torch
from torch import Tensor

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.curves import train_linear
from immunis.attacks.meter import whiten_flops
from immunis.theory.spectrum import eigh, relative_cutoff


def run(arena: Arena, settings: Settings) -> Curve:
    """Raise every direction whose variance is below ``level`` of the mean up to it, then Adam."""
    features = arena.features()
    mean = features.z.double().mean(0)
    centred = features.z.double() - mean
    values, vectors = eigh(centred.T @ centred / len(centred))
    level = settings["level"] * float(values.clamp(min=0).mean())
    cutoff = values[0] * relative_cutoff(len(values), torch.finfo(features.z.dtype).eps)
    quiet = (values > cutoff) & (values < level)
    gain = torch.where(quiet, (level / values.clamp(min=1e-300)).sqrt(), torch.ones_like(values))

    def amplify(z: Tensor) -> Tensor:
        return (z.double() - mean) @ (vectors * gain)

    loud = features.map(amplify, whiten_flops(features.samples, features.dimension))
    return train_linear(loud.scaled(), settings["rate"])


ATTACK = Attack(run, {"level": (0.01, 1.0), "rate": (0.01, 0.1)}, place=1)
