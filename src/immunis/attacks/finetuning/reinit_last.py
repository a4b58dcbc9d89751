"""Re-initialise the last stages, then fine-tune: cuts a defence of them away."""

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.tuning import TUNING, Network, tune
from immunis.models.zoo import reinitialise


def run(arena: Arena, settings: Settings) -> Curve:
    """Draw the last n stages anew, then train them, or everything, and a new head."""
    cut = arena.cut.copy()
    fresh = cut.with_norms(cut.stages[-settings["stages"] :])
    for index, stage in enumerate(fresh):  # one seed for all would make equal stages clones
        reinitialise(cut.model.get_submodule(stage), 1000 * arena.seed + index)
    network = Network(arena, cut)
    everything = settings["train"] == "all"
    trained = network.body.parameters() if everything else network.within(fresh)
    return tune(arena, network, trained, settings)


SETTINGS = {
    "stages": lambda arena: (1, 2, 3)[: len(arena.earlier_stages)],
    "train": ("last", "all"),
    **TUNING,
}
ATTACK = Attack(run, SETTINGS, (), place=6)
