"""What an attacker reads from few rows: the best linear probe's score by the number of rows.

Rows are drawn several times for every training of a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean, stdev

import numpy as np

from immunis.attacks import ATTACKS
from immunis.attacks.arrays import Data, Samples
from immunis.attacks.contract import Arena
from immunis.attacks.search import search
from immunis.audits.describe import Reader
from immunis.core.files import key_of
from immunis.core.jobs import Job
from immunis.core.records import __version__
from immunis.core.shapes import SampleCurve, SamplePoint
from immunis.models.cut import Cut

PROBES = ("ridge", "logistic")
COUNTS, DRAWS = (1, 5, 10, 50), 3


def sample_curve(arena: Arena, counts: Sequence[int] = COUNTS, draws: int = DRAWS) -> SampleCurve:
    """Return test scores of the better of two probes, by rows of each class, and with all rows.

    Each number of rows is drawn several times; of a class with fewer rows all are taken. Counts
    that would take every row are left out. ``area`` is the mean score over the logarithm of the
    number of rows, between the fewest and all.
    """
    labels, points = arena.train.labels, list[SamplePoint]()
    for count in counts:
        drawn = [few_of_each(labels, count, draw) for draw in range(draws)]
        if len(drawn[0]) < len(labels):
            scores = [_best(arena, rows, draw) for draw, rows in enumerate(drawn)]
            points.append(_point(count, len(drawn[0]), scores))
    everything = np.arange(len(labels))
    points.append(_point(None, len(labels), [_best(arena, everything, arena.seed)]))
    return {"points": points, "area": area(points)}


def over_trainings(curves: Sequence[SampleCurve]) -> SampleCurve:
    """Return one curve over the trainings of a model: the mean and the spread of all scores."""
    points = [
        _point(of[0]["per_class"], of[0]["rows"], [s for point in of for s in point["scores"]])
        for of in zip(*(curve["points"] for curve in curves), strict=True)
    ]
    areas = [curve["area"] for curve in curves]
    return {"points": points, "area": mean(areas), "spread": _spread(areas)}


def few_of_each(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return places of at most ``count`` random rows of each class, in order."""
    order = np.random.default_rng(seed).permutation(len(labels))
    kept = [order[labels[order] == label][:count] for label in np.unique(labels)]
    return np.sort(np.concatenate(kept))


def area(points: Sequence[SamplePoint]) -> float:
    """Return the mean of a curve over the logarithm of its rows, by trapezoids.

    >>> area([{"rows": 1, "mean": 0.0}, {"rows": 10, "mean": 1.0}, {"rows": 100, "mean": 1.0}])
    0.75
    """
    if len(points) == 1:
        return points[0]["mean"]
    total = sum(
        (a["mean"] + b["mean"]) / 2 * math.log(b["rows"] / a["rows"]) for a, b in pairwise(points)
    )
    return total / math.log(points[-1]["rows"] / points[0]["rows"])


def sample_job(
    reader: Reader, name: str, model: Cut, task: Samples, budget: int
) -> tuple[str, Job]:
    """Return the key and the job of the curve of one training; it needs the features alone."""
    train, test = reader.read(name, model, task, "")
    parts = Data(train, task.train.labels), Data(test, task.test.labels)
    arena = Arena(
        model.on("cpu"), task.kind, task.outputs, *parts, {"": (train, test)}, budget=budget
    )
    decides = (reader.digest(model), reader.digest_data(task), budget, *COUNTS, DRAWS)
    key = key_of(__version__, "samples", *decides)
    return key, Job(sample_curve, (arena,), f"few rows: {name}")


def _best(arena: Arena, rows: np.ndarray, seed: int) -> float:
    """Return the test score of the probe that validates best on some training rows."""
    train, test = arena.cache[""]
    part = replace(
        arena,
        train=Data(arena.train.inputs[rows], arena.train.labels[rows]),
        cache={"": (train[rows], test)},
        seed=seed,
        notes=[],
    )
    points = [search(ATTACKS[name], part).points[-1] for name in PROBES]
    return max(points, key=lambda point: point.validation).test


def _point(count: int | None, rows: int, scores: list[float]) -> SamplePoint:
    return {
        "per_class": count,
        "rows": rows,
        "mean": mean(scores),
        "spread": _spread(scores),
        "scores": scores,
    }


def _spread(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None
