"""Fine-tune on harmless data first, to shake a defence off, then on the harmful task."""

from __future__ import annotations

import dataclasses

from immunis.attacks.contract import Arena, Attack, Meter, NotApplicableError, Point, Settings
from immunis.attacks.finetuning.shared import Network, space, tune


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Train on the harmless task for a quarter of the budget, then on the attacker's."""
    if arena.harmless is None:
        raise NotApplicableError("no harmless task was given (transfer=[...])")
    cut = arena.cut.copy()
    quarter = max(1, arena.budget // 4)
    harmless = dataclasses.replace(
        arena, train=arena.harmless.train, test=arena.harmless.test, budget=quarter,
        kind=arena.harmless.kind, outputs=arena.harmless.outputs,
    )  # fmt: skip
    first = Network(cut, harmless.outputs)
    points = tune(harmless, first, first.body.parameters(), {**settings, "schedule": "long"})
    spent = points[-1]
    network = Network(cut, arena.outputs)
    rest = dataclasses.replace(arena, budget=max(1, arena.budget - quarter))
    meter = Meter(arena, extracted=False, spent=spent.flops, seconds=spent.seconds)
    return [
        dataclasses.replace(p, steps=p.steps + spent.steps, samples=p.samples + spent.samples)
        for p in tune(rest, network, network.body.parameters(), settings, meter=meter)
    ]


ATTACK = Attack(
    "harmless_first", "fine-tune on harmless data, then on harmful", run, space, lambda cut: ()
)
