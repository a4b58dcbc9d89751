"""Re-initialise the quiet output directions of the last linear map, then fine-tune it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from immunis.attacks.contract import Arena, Attack, NotApplicableError, Point, Settings
from immunis.attacks.finetuning.shared import Network, tune
from immunis.attacks.finetuning.shared import space as tuning_space
from immunis.theory.spectrum import eigh


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Replace directions of low variance by random ones of typical size, then train the layer."""
    network = Network(arena.cut.copy(), arena.outputs)
    layer = network.cut.last_layer
    features = arena.features().z.double()
    values, vectors = eigh(torch.cov(features.T))
    quiet = vectors[:, values < settings["level"] * values.clamp(min=0).mean()]
    weight, _ = arena.cut.last_weights()
    noise = torch.randn(weight.shape, generator=arena.generator(), dtype=torch.float64)
    noise *= weight.square().mean().sqrt()
    with torch.no_grad():
        layer.weight.copy_(weight + quiet @ quiet.T @ (noise - weight))
    return tune(arena, network, layer.parameters(), settings)


def space(arena: Arena) -> dict[str, Sequence[object]]:
    """A direction is quiet below a tenth of the mean variance."""
    if arena.cut.last_linear is None:
        raise NotApplicableError("the features are not the output of a linear layer")
    return {"level": (0.1,), **tuning_space(arena)}


ATTACK = Attack(
    "reinit_directions", "re-initialise low-variance directions, then fine-tune", run, space
)
