"""Fine-tune the last stages."""

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.tuning import TUNING, Network, tune


def run(arena: Arena, settings: Settings) -> Curve:
    """Train the last n stages and a new head; with all stages this would be finetune_all."""
    network = Network(arena)
    last = network.cut.with_norms(network.cut.stages[-settings["stages"] :])
    return tune(arena, network, network.within(last), settings)


def stages(arena: Arena) -> tuple[int, ...]:
    """Return how many of the last stages to train: 1, 2, 4, ... but not all."""
    return tuple(n for n in (1, 2, 4, 8) if n <= len(arena.earlier_stages))


ATTACK = Attack(run, {"stages": stages, **TUNING}, (), anticipated=True, place=1)
