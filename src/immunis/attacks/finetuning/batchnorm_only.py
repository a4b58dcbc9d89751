"""Fine-tune scales, shifts and statistics of normalisation layers only."""

from immunis.attacks.contract import Arena, Attack, Curve, NotApplicableError, Settings
from immunis.attacks.tuning import TUNING, Network, tune
from immunis.models.find_cut import is_norm


def run(arena: Arena, settings: Settings) -> Curve:
    """Train the affine parameters of every normalisation layer and a new head."""
    network = Network(arena)
    norms = [m for m in network.body.modules() if is_norm(m)]
    trained = [p for norm in norms for p in norm.parameters(recurse=False)]
    if not trained:
        raise NotApplicableError("the model has no normalisation layer with parameters")
    return tune(arena, network, trained, settings)


ATTACK = Attack(run, TUNING, (), place=3)
