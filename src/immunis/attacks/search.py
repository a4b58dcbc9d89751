"""How an attacker chooses settings: the whole grid, or optuna; always on validation data."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from immunis.attacks.contract import Arena, Attack, Point, Settings, Space
from immunis.core.errors import InputError, SettingsError

FEW, FOLDS, FIFTHS = 500, 3, 5


@dataclass(frozen=True)
class Outcome:
    """The best run of an attack's search: its settings, its curve, and what the search cost.

    ``trials`` are settings tried; ``runs`` are all runs made for them, over folds and inner
    searches.
    """

    settings: Settings
    points: list[Point]
    trials: int
    runs: int
    search_flops: float
    notes: list[str]


def grid(space: Space) -> Iterator[dict[str, Any]]:
    """Every combination of a space's values, in a fixed order."""
    for values in itertools.product(*space.values()):
        yield dict(zip(space, values, strict=True))


def narrowed(
    attack: Attack, arena: Arena, only: Mapping[str, Sequence[Any]]
) -> dict[str, list[Any]]:
    """An attack's space with those values alone that ``only`` names, where it names a setting."""
    return {
        name: [value for value in values if name not in only or value in only[name]]
        for name, values in attack.space(arena).items()
    }


def search(
    attack: Attack,
    arena: Arena,
    trials: int | None = None,
    only: Mapping[str, Sequence[Any]] | None = None,
) -> Outcome:
    """Run an attack over its search space and return the run that validates best.

    Among equals the first of the grid wins, so grids begin with their safest value. A
    closed-form attack, being cheap, validates few samples on three different fifths of them,
    since one fifth decides by luck; it sees test rows only then, fitted again on all others.
    In regression it validates on all five and their *median*, to three digits, decides: R² has
    no lower bound, so one row unlike all others can outweigh the rest, in one fifth or in a mean.

    Args:
        attack: what to run.
        arena: on what.
        trials: None for the whole grid; a number lets optuna choose that many settings
            between the space's ends (extra ``search``).
        only: values to keep of the space, by setting.
    """
    space = narrowed(attack, arena, only or {})
    for name, values in space.items():
        if not values:
            raise SettingsError(
                f"attack {attack.name!r} searches {name} over "
                f"{', '.join(map(str, attack.space(arena)[name]))}; space leaves none of them."
            )
    merit: Callable[[list[float]], Any] = np.mean
    folds = 1
    if attack.closed_form and arena.kind == "regression":
        folds, merit = FIFTHS, lambda scores: np.round(np.median(scores), 3)
    elif attack.closed_form and len(arena.train.labels) < FEW:
        folds = FOLDS
    tried: list[tuple[float, Settings, list[Point]]] = []

    def once(part: Arena, settings: Settings) -> list[Point]:
        # Layers draw their first weights from torch's own generator: seeded, then left as it was.
        runs = len(arena.tally)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(arena.seed)
            points = attack.run(part, settings)
        if not points:
            raise InputError(f"attack {attack.name!r} returned an empty curve.")
        if len(arena.tally) == runs:  # an inner search has counted its runs itself
            arena.tally.append(points[-1].flops)
        return points

    def attempt(settings: Settings) -> float:
        parts = [
            dataclasses.replace(arena, fold=fold, blind=attack.closed_form) for fold in range(folds)
        ]
        curves = [once(part, settings) for part in parts]
        score = float(merit([max(p.validation for p in points) for points in curves]))
        tried.append((score, dict(settings), curves[0]))
        return score

    start = len(arena.tally)
    if trials is None or not space:
        for each in grid(space):
            attempt(each)
    else:
        _optuna(space, attempt, trials, arena.seed)
    best, settings, points = max(tried, key=lambda t: t[0])  # the first of equals
    if attack.closed_form:
        again = once(dataclasses.replace(arena, refit=True), settings)
        points = [dataclasses.replace(point, validation=best) for point in again]
    spent = arena.tally[start:]
    notes = list(dict.fromkeys(arena.notes))
    return Outcome(settings, points, len(tried), len(spent), sum(spent), notes)


def need_optuna() -> Any:
    """The library that ``trials`` asks for.

    Raises:
        SettingsError: where it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise SettingsError("optuna is not installed: pip install immunis[search]") from error
    return optuna


def _optuna(space: Space, attempt: Callable[[Settings], float], trials: int, seed: int) -> None:
    optuna = need_optuna()
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
