"""How an attacker chooses settings, always on validation data.

Probes try their grid and what lies beyond its edges, fine-tuning attacks successive halving; or
optuna chooses.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from immunis.attacks import ATTACKS, PROBES
from immunis.attacks.contract import (
    Arena,
    Attack,
    Made,
    NotApplicableError,
    Point,
    Settings,
    Step,
    check_values,
)
from immunis.attacks.grid import explore
from immunis.attacks.halving import SCALES, WIDENED, halve, inside, values_tried
from immunis.attacks.optuna_search import sample
from immunis.core.errors import InputError, SettingsError
from immunis.core.packing import packed
from immunis.core.state import seeded

FEW, FOLDS, FIFTHS = 500, 3, 5
SHORT = 3  # probes that run on other features at any budget
WORST = {"classification": 0.0, "regression": -math.inf}  # score of features that are not finite
BROKEN = "training broke every copy: its features are NaN or infinite"
Space = Mapping[str, Sequence[Any]]


class Trial(NamedTuple):
    """One choice of settings with its validation score and its curve (of the first fold).

    ``notes`` are those of the probe that read other features.
    """

    score: float
    settings: Settings
    points: list[Point]
    pilot: bool
    notes: list[str]


@dataclass(frozen=True)
class Outcome:
    """The best run of a search.

    Attributes:
        settings: what was chosen.
        points: the curve of that run.
        trials: how many choices of settings were tried.
        costs: operations of every run, inner searches included.
        notes: what runs want the record to say.
        spent: for each trial the optimizer steps of all trials so far, and the best validation
            score so far with its test score (NaN where it was not looked at).
        rates: of fine-tuning: the rates tried with the chosen optimizer, and whether the chosen
            one lies between others.
        layers: the test score of the run that validates best at each layer, where an attack tries
            several.
    """

    settings: Settings
    points: list[Point]
    trials: int
    costs: list[float]
    notes: list[str]
    spent: list[dict[str, Any]]
    rates: dict[str, Any] | None = None
    layers: dict[str, float] = field(default_factory=dict)


def space_of(attack: Attack, arena: Arena, only: Space | None = None) -> dict[str, Sequence[Any]]:
    """Return the values an attack searches, by setting; ``only`` names values to keep.

    An attack that gives other features searches the probe as well: the most telling three, or
    all where the budget is large or the attack asks for every probe.
    """
    classes = arena.kind == "classification"
    if attack.needs_classes and not classes:
        raise NotApplicableError(f"{attack.name} needs classes")
    found = {n: v(arena) if callable(v) else v for n, v in attack.settings.items()}
    if attack.features is not None:
        fitting = [probe.name for probe in PROBES if classes or not probe.needs_classes]
        found["probe"] = fitting if arena.patient or attack.every_probe else fitting[:SHORT]
    for name, values in found.items():
        check_values(values, name, f"attack {attack.name!r}")
    for name, wanted in (only or {}).items():
        values = found.get(name, wanted)
        kept = [value for value in values if value in wanted]
        if not kept:
            raise SettingsError(
                f"attack {attack.name!r} searches {name} over {', '.join(map(str, values))}; "
                f"space leaves none of them. Keep one, or leave {name} out of space."
            )
        found |= {name: kept} if name in found else {}
    return found


def curves(attack: Attack, arena: Arena, choices: Sequence[Settings]) -> list[list[Point]]:
    """Run an attack with each choice of settings, as one computation if it can; score its steps.

    Scoring is off the clock.
    """
    found: list[list[Point]] = []
    # Layers draw their first weights from torch's own generator: seeded, then left as it was.
    if attack.together is not None:
        with seeded(arena.seed):
            found = _scored(attack.together(arena, choices), len(choices))
    for settings in choices if attack.together is None else ():
        assert attack.run is not None
        with seeded(arena.seed):
            found += _scored(((step,) for step in attack.run(arena, settings)), 1)
    if not all(found):
        raise InputError(f"attack {attack.name!r} returned an empty curve.")
    return found


def _scored(rows: Iterable[Sequence[Step]], count: int) -> list[list[Point]]:
    """Score the steps of runs that go side by side; each has an equal share of the time."""
    found: list[list[Point]] = [[] for _ in range(count)]
    seconds, clock = 0.0, time.perf_counter()
    for steps in rows:
        seconds += (time.perf_counter() - clock) / count
        with torch.no_grad():
            for points, step in zip(found, steps, strict=True):
                points.append(Point(*step[:3], seconds, *step.scores()))
        clock = time.perf_counter()
    return found


def search(
    attack: Attack, arena: Arena, trials: int | None = None, only: Space | None = None
) -> Outcome:
    """Run an attack over its settings and return the run that validates best.

    Among equals the first of the grid wins. A closed-form attack is cheap, so it validates fewer
    than 500 samples on three different fifths of them: one fifth decides by luck. It sees test
    rows only in the end, fitted again on all others. In regression it validates on all five
    fifths, and their *median* to three digits decides: R² has no lower bound, so one row unlike
    all others can outweigh the rest, in one fifth or in a mean.

    A fine-tuning attack searches by successive halving (``halving.halve``), and one of its runs of
    full length is chosen. All others try their grid and more (``grid.explore``).

    With ``trials`` optuna chooses that many settings between the ends of the space (extra
    ``search``), in place of all this; ``only`` names values to keep.
    """
    space = space_of(attack, arena, only)
    merit: Callable[[list[float]], Any] = np.mean
    folds = 1
    if attack.closed_form and arena.kind == "regression":
        folds, merit = FIFTHS, lambda scores: np.round(np.median(scores), 3)
    elif attack.closed_form and len(arena.own) < FEW:
        folds = FOLDS
    tried: list[Trial] = []
    costs: list[float] = []
    lost = Point(0, 0, 0.0, 0.0, WORST[arena.kind], WORST[arena.kind])
    kept: list[tuple[Settings, Made, float]] = []  # of other features: the best and the last made

    def made_of(part: Arena, settings: Settings) -> tuple[Made, float]:
        assert attack.features is not None
        wanted = _making(settings)
        for known, made, seconds in kept:
            if known == wanted:
                return made, seconds
        best = _making(max(tried, key=lambda trial: trial.score).settings) if tried else None
        kept[:] = [each for each in kept if each[0] == best]
        clock, found = time.perf_counter(), attack.features(part, settings)
        made = found if isinstance(found, Made) else Made({"": found})
        costs.extend([made.flops] if made.flops else [])
        kept.append((wanted, made, time.perf_counter() - clock))
        return kept[-1][1:]

    def several(part: Arena, choices: Sequence[Settings]) -> list[tuple[list[Point], list[str]]]:
        if attack.features is None:
            runs = curves(attack, part, choices)
            costs.extend(points[-1].flops for points in runs)
            return [(points, []) for points in runs]
        found = []
        for settings in choices:
            with seeded(arena.seed):
                made, seconds = made_of(part, settings)
            rest, read = max(1, part.budget - made.steps), made.by_reading[settings.get("read", "")]
            if not all(np.isfinite(values).all() for values in read):
                found.append(([_after(made, seconds, lost)], [BROKEN]))
                continue
            elsewhere = dataclasses.replace(part, cache={"": read}, budget=rest)
            inner = search(ATTACKS[settings["probe"]], elsewhere)
            costs.extend(inner.costs)
            notes = [f"{settings['probe']}: {n}" for n in inner.notes if n not in arena.notes]
            found.append(([_after(made, seconds, point) for point in inner.points], notes))
        return found

    def attempt(choices: Sequence[Settings], part: Arena = arena) -> list[float]:
        parts = [dataclasses.replace(part, fold=f, blind=attack.closed_form) for f in range(folds)]
        found = [several(part, choices) for part in parts]
        for settings, by_fold in zip(choices, zip(*found, strict=True), strict=True):
            score = float(merit([max(p.validation for p in points) for points, _ in by_fold]))
            tried.append(Trial(score, dict(settings), by_fold[0][0], part.pilot, by_fold[0][1]))
        return [trial.score for trial in tried[-len(choices) :]]

    def one_by_one(choices: Sequence[Settings]) -> list[float]:
        return [attempt([settings])[0] for settings in choices]

    def shortened(settings: Settings, steps: int) -> float:
        pilot = steps < arena.budget
        return attempt([settings], dataclasses.replace(arena, budget=steps, pilot=pilot))[0]

    widen = not set(WIDENED) & set(only or ())
    if trials is not None and space:
        sample(space, lambda settings: attempt([settings])[0], trials, arena.seed)
    elif attack.fine_tunes:
        halve(space, shortened, arena.budget, arena.seed, widen)
    else:
        explore(space, attempt if attack.features is None else one_by_one, widen)
    whole = [trial for trial in tried if not trial.pilot]
    chosen = max(whole, key=lambda trial: trial.score)  # the first of equals
    settings, points = chosen.settings, chosen.points
    choices = [trial.settings for trial in tried]
    edges = [
        f"{name} {settings[name]:.3g} is at the edge of those tried"
        for name in SCALES
        if isinstance(settings.get(name), float) and not inside(name, settings, choices)
    ]
    if attack.closed_form:
        again, _ = several(dataclasses.replace(arena, refit=True), [settings])[0]
        points = [dataclasses.replace(point, validation=chosen.score) for point in again]
    return Outcome(
        settings,
        points,
        len(tried),
        costs,
        list(dict.fromkeys([*arena.notes, *chosen.notes, *edges])),
        _spent(tried),
        _rates(settings, choices) if attack.fine_tunes else None,
        _layers(whole),
    )


def _making(settings: Settings) -> Settings:
    """Return the settings that decide what features are made, not what is read of them."""
    return {name: value for name, value in settings.items() if name not in ("probe", "read")}


def _layers(tried: Sequence[Trial]) -> dict[str, float]:
    """Return by layer the test score of the run that validates best there."""
    best: dict[str, Trial] = {}
    for trial in tried:
        at = trial.settings.get("layer")
        if at is not None and (str(at) not in best or trial.score > best[str(at)].score):
            best[str(at)] = trial
    scores = {at: max(t.points, key=lambda p: p.validation).test for at, t in best.items()}
    return {at: score for at, score in scores.items() if not math.isnan(score)}


def _spent(tried: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the best score so far, and the steps spent on it, after every trial."""
    found, steps, best = [], 0, tried[0]
    for place, trial in enumerate(tried, 1):
        steps += trial.points[-1].steps
        best = max(best, trial, key=lambda t: t.score)
        test = max(best.points, key=lambda point: point.validation).test
        scores = {"validation": best.score, "test": None if math.isnan(test) else test}
        found.append({"trial": place, "steps": steps, **scores})
    return found


def _rates(settings: Settings, choices: Sequence[Settings]) -> dict[str, Any]:
    """Return the rates tried with the chosen optimizer, and whether the choice is inside."""
    tried = values_tried("rate", settings, choices)
    return {"tried": tried, "inside": inside("rate", settings, choices)}


def _after(made: Made, seconds: float, point: Point) -> Point:
    """Return a point of a probe with what it took to make its features."""
    return dataclasses.replace(
        point,
        steps=made.steps + point.steps,
        samples=made.samples + point.samples,
        flops=made.flops + point.flops,
        seconds=seconds + point.seconds,
    )


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
    best = max(found.points, key=lambda point: point.validation)  # the first of equals
    return {
        "status": "done",
        "settings": dict(found.settings),
        "curve": [{k: v for k, v in vars(point).items() if k != "hits"} for point in found.points],
        "hits": None if best.hits is None else packed(best.hits),
        "trials": found.trials,
        "runs": len(found.costs),
        "search_flops": sum(found.costs),
        "spent": found.spent,
        "rates": found.rates,
        "layers": found.layers,
        "seconds": time.perf_counter() - started,
        "notes": found.notes,
    }
