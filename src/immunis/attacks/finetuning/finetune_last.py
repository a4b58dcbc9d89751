"""Fine-tune the last stage."""

from __future__ import annotations

from collections.abc import Sequence

from immunis.attacks.contract import Arena, Attack, NotApplicableError, Point, Settings
from immunis.attacks.finetuning.shared import Network, parameters_of, tune
from immunis.attacks.finetuning.shared import space as tuning_space


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Train the last stage and a new head."""
    network = Network(arena.cut.copy(), arena.outputs)
    whole = network.cut
    trained = parameters_of(whole, (*whole.stages[-1:], *whole.trailing))
    return tune(arena, network, trained, settings)


def space(arena: Arena) -> dict[str, Sequence[object]]:
    """What every fine-tuning attack searches."""
    if len(arena.cut.stages) < 2:
        raise NotApplicableError("the extractor has one stage only: this is finetune_all")
    return tuning_space(arena)


ATTACK = Attack("finetune_last", "fine-tune the last stage", run, space, lambda cut: ())
