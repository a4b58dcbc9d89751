"""Weights of an objective's terms that are left to be balanced, from gradients at the start."""

from __future__ import annotations

import math

from immunis.core.errors import NumericalError
from immunis.training.objective import SUPERVISED
from immunis.training.setup import TrainingRun
from immunis.training.simulated import attacked, gradients, loss_scale, norm_of
from immunis.training.step import Rows, add_gradient, clear


def balanced_weights(run: TrainingRun, rows: Rows) -> dict[str, float]:
    """Return the objective's weights; None becomes ``multiple·weight·‖∇base‖/‖∇term‖``."""
    goal = run.objective
    found = {SUPERVISED: 1.0} | {n: w for n, w in goal.weights.items() if w is not None}

    def pull(name: str) -> float:
        clear(run)
        only = {name: 1.0 / loss_scale(run)}  # unscaled, so that half precision does not overflow
        if goal.attacker is not None and rows.harmful is not None:
            with attacked(run, goal.attacker, rows):
                add_gradient(run, rows, goal.after, only, primary=goal.after_primary)
        add_gradient(run, rows, goal.terms, only)
        return norm_of(run, gradients(run))

    balanced = [name for name, weight in goal.weights.items() if weight is None]
    base = found[goal.base] * pull(goal.base) if balanced else 0.0
    for name in balanced:
        size = pull(name)
        if not (math.isfinite(size) and math.isfinite(base)):
            raise NumericalError(
                f"the gradient of {name} or of {goal.base} is not finite at the start. Check the "
                "model's weights and the scale of its inputs."
            )
        found[name] = goal.multiples.get(name, 1.0) * base / size if size > 0 else 0.0
        if not size:
            run.note(f"{name} has no gradient at the start and is left out: give it a weight.")
    return found
