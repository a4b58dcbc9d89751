"""Re-initialise the quiet output directions of the last linear map, then fine-tune it."""

import torch

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.tuning import TUNING, Network, tune
from immunis.theory.spectrum import eigh


def run(arena: Arena, settings: Settings) -> Curve:
    """Replace directions of low variance by random ones of typical size, then train the layer.

    A direction is quiet if its variance is below ``level`` times the mean.
    """
    assert arena.last_linear
    network = Network(arena)
    layer = network.cut.last_layer
    values, vectors = eigh(torch.cov(arena.features().z.double().T))
    quiet = vectors[:, values < settings["level"] * values.clamp(min=0).mean()]
    weight, _ = arena.cut.last_weights()
    noise = torch.randn(weight.shape, generator=arena.generator(), dtype=torch.float64)
    noise *= weight.square().mean().sqrt()
    with torch.no_grad():
        layer.weight.copy_(weight + quiet @ quiet.T @ (noise - weight))
    return tune(arena, network, layer.parameters(), settings)


ATTACK = Attack(run, {"level": (0.1,), **TUNING}, place=2)
