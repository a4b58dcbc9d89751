"""Invert the last linear map and probe what went into it."""

from __future__ import annotations

import numpy as np
import torch

from immunis.attacks.contract import Arena, Attack, NotApplicableError, Point, Settings, tensor
from immunis.attacks.surgery.shared import choice, probe_on


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Probe ``(z − b)·(W⁺)ᵀ``: exact where W has full column rank."""
    weight, bias = arena.cut.last_weights()
    inverse = torch.linalg.pinv(weight).T

    def undo(features: np.ndarray) -> np.ndarray:
        return ((tensor(features).double() - bias) @ inverse).numpy()

    train, test = arena.cache[""]
    return probe_on(arena, undo(train), undo(test), settings["probe"])


def space(arena: Arena) -> dict[str, tuple[str, ...]]:
    """The probes."""
    if arena.cut.last_linear is None:
        raise NotApplicableError("the features are not the output of a linear layer")
    return {"probe": choice(arena)}


ATTACK = Attack("invert_last", "undo the last linear map by its pseudo-inverse", run, space)
