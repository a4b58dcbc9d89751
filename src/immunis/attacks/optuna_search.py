"""Optuna chooses settings between the ends of their space, in place of a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from immunis.core.extras import need


def sample(
    space: Mapping[str, Sequence[Any]],
    attempt: Callable[[Mapping[str, Any]], float],
    trials: int,
    seed: int,
) -> None:
    """Call ``attempt(settings)``, which returns a validation score, so many times."""
    optuna = need("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: Any) -> float:
        settings = {}
        for name, values in space.items():
            if all(isinstance(v, float) and v > 0 for v in values) and len(values) > 1:
                settings[name] = trial.suggest_float(name, min(values), max(values), log=True)
            else:
                settings[name] = trial.suggest_categorical(name, list(values))
        return attempt(settings)

    sampler = optuna.samplers.TPESampler(seed=seed)
    optuna.create_study(direction="maximize", sampler=sampler).optimize(objective, n_trials=trials)
