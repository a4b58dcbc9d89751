"""Fine-tune the network to a teacher that reads an earlier layer."""

from torch import Tensor

from immunis.attacks.arrays import tensor
from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.features import solve_flops
from immunis.attacks.tuning import TUNING, Network, tune
from immunis.theory.gram import gram_of
from immunis.theory.probes import ridge_probe


def run(arena: Arena, settings: Settings) -> Curve:
    """Learn the labels and the soft answers of a ridge probe on an earlier stage together."""
    features = arena.features(settings["layer"])
    weights, bias = ridge_probe(gram_of(features.z, features.targets()), 1e-2)
    solved = solve_flops(features.samples, features.dimension, features.outputs)
    known = tensor(arena.cache[settings["layer"]][0]).double()
    sharpness = 10.0 if arena.kind == "classification" else 1.0  # one-hot scores as logits

    def teacher(rows: Tensor) -> Tensor:
        return sharpness * (known[rows] @ weights + bias)

    network, spent = Network(arena), features.spent + solved
    return tune(arena, network, network.body.parameters(), settings, teacher, spent)


def first_and_last(arena: Arena) -> tuple[str, ...]:
    """Return the first and the last of the earlier stages."""
    return tuple(dict.fromkeys((arena.earlier_stages[0], arena.earlier_stages[-1])))


ATTACK = Attack(run, {"layer": first_and_last, **TUNING}, lambda cut: cut.stages[:-1], place=4)
