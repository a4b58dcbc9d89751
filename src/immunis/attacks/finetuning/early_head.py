"""Drop the late stages and fine-tune what is left with a head of its own."""

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.tuning import TUNING, Network, tune


def run(arena: Arena, settings: Settings) -> Curve:
    """Train a head on the pooled output of an earlier stage, with all that comes before it."""
    network = Network(arena, layer=settings["layer"])
    return tune(arena, network, network.body.parameters(), settings)


SETTINGS = {"layer": lambda arena: arena.earlier_stages[-3:], **TUNING}
ATTACK = Attack(run, SETTINGS, (), place=8)
