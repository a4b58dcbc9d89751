"""Fine-tune on harmless data first, to shake a defence off, then on the harmful task."""

from dataclasses import replace

from immunis.attacks.contract import Arena, Attack, Curve, NotApplicableError, Settings
from immunis.attacks.tuning import TUNING, Network, tune


def run(arena: Arena, settings: Settings) -> Curve:
    """Train on the harmless task for a quarter of the budget, then on the attacker's."""
    if arena.harmless is None:
        raise NotApplicableError("no harmless task was given (transfer=[...])")
    cut, quarter = arena.cut.copy(), max(1, arena.budget // 4)
    harmless = replace(arena, **vars(arena.harmless), draw=None, budget=quarter)
    network = Network(harmless, cut)
    *_, first = tune(harmless, network, network.body.parameters(), settings)
    rest, network = replace(arena, budget=max(1, arena.budget - quarter)), Network(arena, cut)
    for step in tune(rest, network, network.body.parameters(), settings, spent=first.flops):
        yield step._replace(steps=step.steps + first.steps, samples=step.samples + first.samples)


ATTACK = Attack(run, TUNING, (), place=5)
