"""How an attacker chooses settings: the whole grid, or optuna; always on validation data."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from immunis.attacks import ATTACKS, PROBES
from immunis.attacks.contract import Arena, Attack, NotApplicableError, Point, Settings
from immunis.core.errors import InputError, SettingsError

FEW, FOLDS, FIFTHS = 500, 3, 5
SHORT = 3  # probes that run on other features at any budget
Space = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Outcome:
    """The best run of a search; ``costs`` are operations of every run, inner searches included."""

    settings: Settings
    points: list[Point]
    trials: int
    costs: list[float]
    notes: list[str]


def space_of(attack: Attack, arena: Arena, only: Space | None = None) -> dict[str, Sequence[Any]]:
    """Return the values an attack searches, by setting; ``only`` names values to keep.

    An attack that gives other features searches the probe as well: the most telling three, or
    all where the budget is large.
    """
    if attack.needs_classes and arena.kind != "classification":
        raise NotApplicableError(f"{attack.name} needs classes")
    found = {n: v(arena) if callable(v) else v for n, v in attack.settings.items()}
    if attack.features is not None:
        classes = arena.kind == "classification"
        fitting = [probe.name for probe in PROBES if classes or not probe.needs_classes]
        found["probe"] = fitting if arena.patient else fitting[:SHORT]
    for name, wanted in (only or {}).items():
        values = found.get(name, wanted)
        kept = [value for value in values if value in wanted]
        if not kept:
            raise SettingsError(
                f"attack {attack.name!r} searches {name} over {', '.join(map(str, values))}; "
                "space leaves none of them."
            )
        found |= {name: kept} if name in found else {}
    return found


def grid(space: Space) -> Iterator[dict[str, Any]]:
    """Yield every combination of a space's values, in a fixed order."""
    for values in itertools.product(*space.values()):
        yield dict(zip(space, values, strict=True))


def curve(attack: Attack, arena: Arena, settings: Settings) -> list[Point]:
    """Run an attack with one choice of settings and score its steps, off the clock."""
    assert attack.run is not None
    points: list[Point] = []
    seconds, clock = 0.0, time.perf_counter()
    for step in attack.run(arena, settings):
        seconds += time.perf_counter() - clock
        with torch.no_grad():
            scores = step.scores()
        points.append(Point(*step[:3], seconds, *scores))
        clock = time.perf_counter()
    if not points:
        raise InputError(f"attack {attack.name!r} returned an empty curve.")
    return points


def search(
    attack: Attack, arena: Arena, trials: int | None = None, only: Space | None = None
) -> Outcome:
    """Run an attack over its settings and return the run that validates best.

    Among equals the first of the grid wins. A closed-form attack is cheap, so it validates fewer
    than 500 samples on three different fifths of them: one fifth decides by luck. It sees test
    rows only in the end, fitted again on all others. In regression it validates on all five
    fifths, and their *median* to three digits decides: R² has no lower bound, so one row unlike
    all others can outweigh the rest, in one fifth or in a mean.

    With ``trials`` optuna chooses that many settings between the ends of the space (extra
    ``search``), in place of the whole grid; ``only`` names values to keep.
    """
    space = space_of(attack, arena, only)
    merit: Callable[[list[float]], Any] = np.mean
    folds = 1
    if attack.closed_form and arena.kind == "regression":
        folds, merit = FIFTHS, lambda scores: np.round(np.median(scores), 3)
    elif attack.closed_form and len(arena.train.labels) < FEW:
        folds = FOLDS
    tried: list[tuple[float, Settings, list[Point]]] = []
    costs: list[float] = []

    def once(part: Arena, settings: Settings) -> list[Point]:
        # Layers draw their first weights from torch's own generator: seeded, then left as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(arena.seed)
            if attack.features is None:
                points = curve(attack, part, settings)
                costs.append(points[-1].flops)
                return points
            elsewhere = dataclasses.replace(part, cache={"": attack.features(part, settings)})
            inner = search(ATTACKS[settings["probe"]], elsewhere)
            costs.extend(inner.costs)
            return inner.points

    def attempt(settings: Settings) -> float:
        parts = [
            dataclasses.replace(arena, fold=fold, blind=attack.closed_form) for fold in range(folds)
        ]
        curves = [once(part, settings) for part in parts]
        score = float(merit([max(p.validation for p in points) for points in curves]))
        tried.append((score, dict(settings), curves[0]))
        return score

    if trials is None or not space:
        for each in grid(space):
            attempt(each)
    else:
        _optuna(space, attempt, trials, arena.seed)
    best, settings, points = max(tried, key=lambda t: t[0])  # the first of equals
    if attack.closed_form:
        again = once(dataclasses.replace(arena, refit=True), settings)
        points = [dataclasses.replace(point, validation=best) for point in again]
    return Outcome(settings, points, len(tried), costs, list(dict.fromkeys(arena.notes)))


def run_attack(
    name: str, arena: Arena, trials: int | None = None, space: Space | None = None
) -> dict[str, Any]:
    """Search one attack and return plain values; a failure is recorded with its reason."""
    started = time.perf_counter()
    arena = dataclasses.replace(arena, cut=arena.cut.on(arena.device))
    try:
        found = search(ATTACKS[name], arena, trials, space)
    except NotApplicableError as reason:
        return {"status": "not applicable", "reason": str(reason)}
    except SettingsError:
        raise  # the request is wrong, not the attack
    except Exception as error:  # one failing attack must not end the audit
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    return {
        "status": "done",
        "settings": dict(found.settings),
        "curve": [vars(point) for point in found.points],
        "trials": found.trials,
        "runs": len(found.costs),
        "search_flops": sum(found.costs),
        "seconds": time.perf_counter() - started,
        "notes": found.notes,
    }


def need_optuna() -> Any:
    """Return the library that ``trials`` needs; raise SettingsError if it is not installed."""
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
            if all(isinstance(v, float) and v > 0 for v in values) and len(values) > 1:
                settings[name] = trial.suggest_float(name, min(values), max(values), log=True)
            else:
                settings[name] = trial.suggest_categorical(name, list(values))
        return attempt(settings)

    sampler = optuna.samplers.TPESampler(seed=seed)
    optuna.create_study(direction="maximize", sampler=sampler).optimize(objective, n_trials=trials)
