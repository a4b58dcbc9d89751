"""Re-estimate BatchNorm statistics on the attacker's data, then probe."""

import numpy as np
import torch
from torch import nn

from immunis.attacks.contract import Arena, Arrays, Attack, NotApplicableError, Settings, tensor


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

    def read(inputs: np.ndarray) -> np.ndarray:
        blocks = tensor(inputs).split(512)
        return torch.cat([cut.features(block.to(cut.example)).cpu() for block in blocks]).numpy()

    with torch.no_grad():
        read(arena.train.inputs[arena.rows[0]])
        for norm in norms:
            norm.eval()
        return read(arena.train.inputs), read(arena.test.inputs)


ATTACK = Attack(features=features, place=3)
