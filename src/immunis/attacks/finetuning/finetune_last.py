"""Fine-tune the last stage."""

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.tuning import TUNING, Network, tune


def run(arena: Arena, settings: Settings) -> Curve:
    """Train the last stage and a new head; with one stage only this would be finetune_all."""
    assert arena.earlier_stages
    network = Network(arena)
    last = (*network.cut.stages[-1:], *network.cut.trailing)
    return tune(arena, network, network.within(last), settings)


ATTACK = Attack(run, TUNING, (), place=1)
