"""Run the network in float64 and decompose its features: what one large direction hides.

Features in float32 are known to 1e-7 of their largest direction, and so are singular values that
come from a Gram in float64. Whoever has the weights is bound by neither.
"""

from functools import partial

import torch
from torch import Tensor

from immunis.attacks.arrays import read_features
from immunis.attacks.contract import Arena, Attack, Curve, NotApplicableError, Settings, Step
from immunis.attacks.features import Features, whiten_flops

CUTOFFS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12, 1e-14)


def run(arena: Arena, settings: Settings) -> Curve:
    """Solve least squares on the singular directions above one cut-off after another."""
    device = "cpu" if arena.device == "mps" else arena.device  # which has no float64
    cut = arena.cut.copy()
    cut.model.to(device, torch.float64)
    try:
        parts = [read_features(cut, part.inputs).double() for part in (arena.train, arena.test)]
    except (RuntimeError, TypeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise NotApplicableError(f"the network does not run in float64: {error}") from None
    features = Features(arena, *parts)
    targets, mean = features.targets(), features.z.mean(0)
    left, sizes, right = torch.linalg.svd(features.z - mean, full_matrices=False)
    offset = targets.mean(0)
    aims = left.T @ (targets - offset)
    spent = features.spent + whiten_flops(features.samples, features.dimension)

    def predict(z: Tensor) -> Tensor:
        return (z - mean) @ weights + offset

    for step, cutoff in enumerate(CUTOFFS[: arena.budget], 1):
        rank = int((sizes > cutoff * sizes[0]).sum())
        weights = (right[:rank].T / sizes[:rank]) @ aims[:rank]
        flops = spent + 2.0 * features.dimension * rank * features.outputs
        yield Step(step, features.samples, flops, partial(features.scores, predict))


ATTACK = Attack(run, place=7)
