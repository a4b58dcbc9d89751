"""Re-initialise the last stages, then fine-tune: cuts a defence of them away."""

from __future__ import annotations

from collections.abc import Sequence

from immunis.attacks.contract import Arena, Attack, NotApplicableError, Point, Settings
from immunis.attacks.finetuning.shared import Network, parameters_of, tune
from immunis.attacks.finetuning.shared import space as tuning_space
from immunis.models.zoo import reinitialise


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Draw the last n stages anew, then train them, or everything, and a new head."""
    cut = arena.cut.copy()
    fresh = (*cut.stages[-settings["stages"] :], *cut.trailing)
    for index, stage in enumerate(fresh):  # one seed for all would make equal stages clones
        reinitialise(cut.model.get_submodule(stage), 1000 * arena.seed + index)
    network = Network(cut, arena.outputs)
    all_of_it = settings["train"] == "all"
    trained = network.body.parameters() if all_of_it else parameters_of(cut, fresh)
    return tune(arena, network, trained, settings)


def space(arena: Arena) -> dict[str, Sequence[object]]:
    """One or two stages, trained alone or with everything below."""
    if len(arena.cut.stages) < 2:
        raise NotApplicableError("the extractor has one stage only: this is training from scratch")
    stages = (1, 2) if len(arena.cut.stages) > 2 else (1,)
    return {"stages": stages, "train": ("last", "all"), **tuning_space(arena)}


ATTACK = Attack(
    "reinit_last", "re-initialise the last stages, then fine-tune", run, space, lambda cut: ()
)
