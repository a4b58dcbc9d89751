"""Fine-tune scales, shifts and statistics of normalisation layers only."""

from __future__ import annotations

from immunis.attacks.contract import Arena, Attack, NotApplicableError, Point, Settings
from immunis.attacks.finetuning.shared import Network, space, tune
from immunis.models.stages import is_norm


def run(arena: Arena, settings: Settings) -> list[Point]:
    """Train the affine parameters of every normalisation layer and a new head."""
    network = Network(arena.cut.copy(), arena.outputs)
    norms = [m for m in network.body.modules() if is_norm(m)]
    trained = [p for norm in norms for p in norm.parameters(recurse=False)]
    if not trained:
        raise NotApplicableError("the model has no normalisation layer with parameters")
    return tune(arena, network, trained, settings)


ATTACK = Attack("batchnorm_only", "fine-tune normalisation layers", run, space, lambda cut: ())
