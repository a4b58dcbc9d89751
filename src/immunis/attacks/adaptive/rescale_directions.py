"""Amplify suspiciously quiet directions of the features, then probe."""

from __future__ import annotations

import torch
from torch import Tensor

from immunis.attacks.contract import Arena, Attack, Meter, Point, Settings, whiten_flops
from immunis.attacks.probes.shared import linear_probe, minibatch_curve
from immunis.theory.spectrum import eigh, relative_cutoff


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Raise every direction whose variance is below ``level`` of the mean up to it, then Adam."""
    features = arena.features()
    meter = Meter(arena, spent=whiten_flops(features.samples, features.dimension))
    mean = features.z.double().mean(0)
    centred = features.z.double() - mean
    values, vectors = eigh(centred.T @ centred / len(centred))
    level = settings["level"] * float(values.clamp(min=0).mean())
    cutoff = values[0] * relative_cutoff(len(values), torch.finfo(features.z.dtype).eps)
    quiet = (values > cutoff) & (values < level)
    gain = torch.where(quiet, (level / values.clamp(min=1e-300)).sqrt(), torch.ones_like(values))

    def amplify(z: Tensor) -> Tensor:
        return (z.double() - mean) @ (vectors * gain)

    loud = features.map(amplify).scaled()
    probe = linear_probe(loud)
    optimizer = torch.optim.Adam(probe.parameters(), lr=settings["rate"])
    return minibatch_curve(loud, probe, optimizer, meter=meter)


ATTACK = Attack(
    "rescale_directions",
    "amplify low-variance directions, then probe",
    run,
    lambda arena: {"level": (0.01, 1.0), "rate": (0.01, 0.1)},
)
