"""Fine-tune the whole network."""

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.tuning import TUNING, Network, tune


def run(arena: Arena, settings: Settings) -> Curve:
    """Train every parameter and a new head."""
    network = Network(arena)
    return tune(arena, network, network.body.parameters(), settings)


ATTACK = Attack(run, TUNING, (), anticipated=True, preset="quick", place=2)
