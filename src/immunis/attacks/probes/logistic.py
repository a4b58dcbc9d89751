"""Logistic regression with a sweep over C: how CLIP and its successors are probed."""

from functools import partial

import torch

from immunis.attacks.contract import (
    Arena,
    Attack,
    Curve,
    NotApplicableError,
    Searched,
    Settings,
    Step,
)
from immunis.attacks.features import LENGTHS
from immunis.theory.logistic import logistic


def run(arena: Arena, settings: Settings) -> Curve:
    """Fit L2-penalised logistic regression on features of unit mean square."""
    features = arena.features().in_basis(settings["basis"]).scaled()
    seen, labels = features.y.unique(return_inverse=True)
    if len(seen) < 2:
        raise NotApplicableError("the rows to fit on hold one class only")
    z, labels = features.z.to(arena.device), labels.to(arena.device)
    matrix = torch.zeros(features.outputs, features.dimension, dtype=torch.float64)
    bias = torch.full((features.outputs,), -1e300, dtype=torch.float64)  # classes never seen
    found = logistic(z, labels, len(seen), settings["c"], min(arena.budget, 500))
    matrix[seen], bias[seen], steps = found
    samples = steps * features.samples
    flops = features.spent + 4.0 * samples * features.dimension * features.outputs
    scores = partial(features.scores, lambda z: z.double() @ matrix.T + bias)
    return [Step(steps, samples, flops, scores)]


SETTINGS: Searched = {"c": (1.0, 0.01, 100.0, 1e4), "basis": LENGTHS}
ATTACK = Attack(
    run, SETTINGS, anticipated=True, closed_form=True, needs_classes=True, place=7, telling=3
)
