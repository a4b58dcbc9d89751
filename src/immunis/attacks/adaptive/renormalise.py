"""Re-estimate BatchNorm statistics on the attacker's data, then probe."""

from torch import nn

from immunis.attacks.arrays import read_features
from immunis.attacks.contract import Arena, Attack, Made, NotApplicableError, Settings
from immunis.attacks.reading import readings, reread


def features(arena: Arena, settings: Settings) -> Made:
    """Pass the attacker's data once in training mode, then read the features anew."""
    cut = arena.cut.copy()
    norms = [m for m in cut.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        raise NotApplicableError("the model has no BatchNorm layer")
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over all batches
        norm.train()

    read_features(cut, arena.train.inputs, rows=arena.rows[0])
    for norm in norms:
        norm.eval()
    return reread(arena, cut)


ATTACK = Attack(settings={"read": readings}, features=features, every_probe=True, place=3)
