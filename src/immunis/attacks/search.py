"""How an attacker chooses settings: the whole grid, or optuna; always on validation data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from immunis.attacks.base import Arena, Attack, Point, Settings, Space
from immunis.errors import InputError, SettingsError


@dataclass(frozen=True)
class Outcome:
    """The best run of an attack's search: its settings, its curve, and what the search cost."""

    settings: Settings
    points: list[Point]
    trials: int
    search_flops: float
    notes: list[str]


def grid(space: Space) -> Iterator[dict[str, Any]]:
    """Every combination of a space's values, in a fixed order."""
    for values in itertools.product(*space.values()):
        yield dict(zip(space, values, strict=True))


def search(attack: Attack, arena: Arena, trials: int | None = None) -> Outcome:
    """Run an attack over its search space and return the run that validates best.

    Args:
        attack: what to run.
        arena: on what.
        trials: None for the whole grid; a number lets optuna choose that many settings
            between the space's ends (extra ``search``).
    """
    space = dict(attack.space(arena))
    tried: list[tuple[float, Settings, list[Point]]] = []

    def attempt(settings: Settings) -> float:
        # Layers draw their first weights from torch's own generator: seeded, then left as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(arena.seed)
            points = attack.run(arena, settings)
        if not points:
            raise InputError(f"attack {attack.name!r} returned an empty curve.")
        best = max(p.validation for p in points)
        tried.append((best, dict(settings), points))
        return best

    if trials is None or not space:
        for each in grid(space):
            attempt(each)
    else:
        _optuna(space, attempt, trials, arena.seed)
    _, settings, points = max(tried, key=lambda t: t[0])  # the first of equals
    return Outcome(
        settings,
        points,
        len(tried),
        sum(run[-1].flops for *_, run in tried),
        list(dict.fromkeys(arena.notes)),
    )


def _optuna(space: Space, attempt: Callable[[Settings], float], trials: int, seed: int) -> None:
    try:
        import optuna
    except ImportError as error:
        raise SettingsError("optuna is not installed: pip install immunis[search]") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: Any) -> float:
        settings = {}
        for name, values in space.items():
            number = all(isinstance(v, float) and v > 0 for v in values) and len(values) > 1
            if number:
                settings[name] = trial.suggest_float(name, min(values), max(values), log=True)
            else:
                settings[name] = trial.suggest_categorical(name, list(values))
        return attempt(settings)

    sampler = optuna.samplers.TPESampler(seed=seed)
    optuna.create_study(direction="maximize", sampler=sampler).optimize(objective, n_trials=trials)
