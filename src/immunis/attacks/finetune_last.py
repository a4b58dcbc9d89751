"""Fine-tune the last stage."""

from __future__ import annotations

from immunis.attacks.base import Arena, Attack, Point, Settings
from immunis.attacks.tuning import Network, last_stage, parameters_of, space, tune


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Train the last stage and a new head."""
    network = Network(arena.cut.copy(), arena.outputs, arena.generator())
    trained = parameters_of(network.cut, [last_stage(network.cut)])
    return tune(arena, network, trained, settings)


ATTACK = Attack("finetune_last", "fine-tune the last stage", run, space, lambda cut: ())
