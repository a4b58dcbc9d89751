"""Fine-tune the network to a teacher that reads an earlier layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from immunis.attacks.contract import (
    Arena,
    Attack,
    Meter,
    NotApplicableError,
    Point,
    Settings,
    solve_flops,
    tensor,
)
from immunis.attacks.finetuning.shared import Network, tune
from immunis.attacks.finetuning.shared import space as tuning_space
from immunis.attacks.surgery.earlier_layer import layers
from immunis.theory.gram import gram_of
from immunis.theory.ridge import ridge_probe


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Learn the labels and the soft answers of a ridge probe on an earlier stage together."""
    features = arena.features(settings["layer"])
    taught = solve_flops(features.samples, features.dimension, features.outputs)
    meter = Meter(arena, spent=taught)  # the teacher reads every sample once, too
    weights, bias = ridge_probe(gram_of(features.z, features.targets()), 1e-2)
    known = tensor(arena.cache[settings["layer"]][0]).double()
    sharpness = 10.0 if arena.kind == "classification" else 1.0  # one-hot scores as logits

    def teacher(rows: Tensor) -> Tensor:
        return sharpness * (known[rows] @ weights + bias)

    network = Network(arena.cut.copy(), arena.outputs)
    return tune(arena, network, network.body.parameters(), settings, teacher, meter)


def space(arena: Arena) -> dict[str, Sequence[object]]:
    """The first and the last of the earlier stages."""
    earlier = layers(arena.cut)
    if not earlier:
        raise NotApplicableError("the extractor has one stage only")
    return {"layer": tuple(dict.fromkeys((earlier[0], earlier[-1]))), **tuning_space(arena)}


ATTACK = Attack("distil", "fine-tune to a probe of an earlier layer", run, space, layers)
