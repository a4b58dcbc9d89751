"""Re-initialise the first stages, then fine-tune: cuts a defence of them away."""

from immunis.attacks.contract import Arena, Attack, Curve, Settings
from immunis.attacks.tuning import TUNING, Network, tune
from immunis.models.zoo import reinitialise


def run(arena: Arena, settings: Settings) -> Curve:
    """Draw the first n stages anew, then train everything and a new head."""
    cut = arena.cut.copy()
    for index, stage in enumerate(cut.with_norms(cut.stages[: settings["stages"]])):
        reinitialise(cut.model.get_submodule(stage), 1000 * arena.seed + index)
    network = Network(arena, cut)
    return tune(arena, network, network.body.parameters(), settings)


SETTINGS = {"stages": lambda arena: (1, 2)[: len(arena.earlier_stages)], **TUNING}
ATTACK = Attack(run, SETTINGS, (), place=7)
