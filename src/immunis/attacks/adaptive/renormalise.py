"""Re-estimate BatchNorm statistics on the attacker's data, then probe."""

from torch import nn

from immunis.attacks.contract import (
    Arena,
    Arrays,
    Attack,
    NotApplicableError,
    Settings,
    read_features,
)


def features(arena: Arena, settings: Settings) -> Arrays:
    """Pass the attacker's data once in training mode, then read the features anew."""
    cut = arena.cut.copy()
    norms = [m for m in cut.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        raise NotApplicableError("the model has no BatchNorm layer")
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over all batches
        norm.train()

    read_features(cut, arena.train.inputs[arena.rows[0]])
    for norm in norms:
        norm.eval()
    train, test = (read_features(cut, part.inputs) for part in (arena.train, arena.test))
    return train.numpy(), test.numpy()


ATTACK = Attack(features=features, place=3)
