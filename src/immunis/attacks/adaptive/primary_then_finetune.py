"""Tune on public primary data first, then fine-tune the whole network."""

from dataclasses import replace

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.retrain import RATES, after, on_primary
from immunis.attacks.tuning import TUNING, Network, tune


def run(arena: Arena, settings: Settings) -> Curve:
    """Train on primary data for half of the budget, then on the attacker's own."""
    cut, half = arena.cut.copy(), max(1, arena.budget // 2)
    first = on_primary(replace(arena, budget=half), cut, settings["primary_rate"])
    rest = replace(arena, budget=max(1, arena.budget - first.steps))
    network = Network(rest, cut)
    return after(first, tune(rest, network, network.body.parameters(), settings))


ATTACK = Attack(run, {"primary_rate": RATES, **TUNING}, (), place=9)
