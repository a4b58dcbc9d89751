"""Re-estimate BatchNorm statistics on the attacker's data, then probe."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from immunis.attacks.contract import Arena, Attack, NotApplicableError, Point, Settings, tensor
from immunis.attacks.surgery.shared import choice, probe_on


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Pass the attacker's data once in training mode, read features anew, probe them."""
    cut = arena.cut.copy()
    norms = [m for m in cut.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    parameter = next(cut.model.parameters())
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over all batches
        norm.train()

    def read(inputs: np.ndarray) -> torch.Tensor:
        blocks = tensor(inputs).split(512)
        return torch.cat([cut.features(block.to(parameter)).cpu() for block in blocks])

    with torch.no_grad():
        read(arena.train.inputs[arena.rows[0]])
        for norm in norms:
            norm.eval()
        train, test = read(arena.train.inputs), read(arena.test.inputs)
    return probe_on(arena, train.numpy(), test.numpy(), settings["probe"])


def space(arena: Arena) -> dict[str, tuple[str, ...]]:
    """The probes."""
    modules = arena.cut.model.modules()
    if not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in modules):
        raise NotApplicableError("the model has no BatchNorm layer")
    return {"probe": choice(arena)}


ATTACK = Attack("renormalise", "re-estimate BatchNorm statistics, then probe", run, space)
