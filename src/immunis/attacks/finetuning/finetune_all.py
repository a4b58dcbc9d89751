"""Fine-tune the whole network."""

from __future__ import annotations

from immunis.attacks.contract import Arena, Attack, Point, Settings
from immunis.attacks.finetuning.shared import Network, space, tune


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Train every parameter and a new head."""
    network = Network(arena.cut.copy(), arena.outputs)
    return tune(arena, network, network.body.parameters(), settings)


ATTACK = Attack("finetune_all", "fine-tune the whole network", run, space, lambda cut: ())
