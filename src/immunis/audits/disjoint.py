"""Rows that an attacker may not share with the defence, nor training data with test data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from immunis.core.errors import InputError
from immunis.data.copies import (
    ALIKE,
    COPY,
    UNIT,
    WIDTH,
    count_repeated,
    count_shared,
    is_image,
    sketches,
)
from immunis.data.nearness import grey, in_own_units, nearness
from immunis.data.task import Task
from immunis.data.text import is_text

MOST_ALIKE = 0.05  # share of the attacker's images that may look like the defender's
MOST_REPEATED = 2  # times as many rows as a set repeats may occur in another of its size


def disjoint_rows(attacker: Task, primary: Task, defender: Task | None) -> dict[str, Any]:
    """Raise InputError if the attacker trains or is scored on rows that the defence has seen.

    These are rows of the primary training data and of the defender's sample, and copies of them
    (``data.copies``). Images that only look alike are warned of, and refused above 5%. Warned of
    are equal rows where the attacker's own sets repeat rows as often (tables of few values), rows
    that lie suspiciously near (``data.nearness``), and those that the attacker's own training and
    test data share. The record says what was compared.
    """
    mine = {
        "the attacker's training data": attacker.train,
        "the attacker's test data": attacker.test,
    }
    theirs = {f"the training data of {primary.name}": primary.train}
    if defender is not None:
        theirs["the defender's sample"] = defender.train
    splits = {name: split for name, split in {**mine, **theirs}.items() if split is not None}
    found = dict(zip(splits, sketches(*splits.values()), strict=True))
    seen = {name: found[name] for name in theirs}
    own = {name: rows for name, rows in found.items() if name not in seen}

    def count(tolerance: float, *others: np.ndarray) -> int:
        return sum(count_shared(rows, *others, tolerance=tolerance) for rows in own.values())

    rows = sum(map(len, own.values()))
    shared = count(COPY, *seen.values())
    chance = _by_chance(list(own.values()), sum(map(len, seen.values()))) if shared else 0
    image = is_image(primary.input_shape)
    alike = count(ALIKE, *seen.values()) if image else shared
    if shared > chance or alike - shared > MOST_ALIKE * rows:
        each = {name: count(ALIKE if image else COPY, of) for name, of in seen.items()}
        where = " and ".join(f"{n} in {name}" for name, n in each.items() if n)
        raise InputError(
            f"{alike} sample(s) of {attacker.name} are also in what the defence has seen"
            f"{', or look like it' * image} ({where}), so the audit would flatter the defence. "
            "Take them out of one of the two: the attacker must hold other samples."
        )
    if shared:
        _warn(
            f"{shared} sample(s) of {attacker.name} equal some that the defence has seen. Its own "
            "data repeats rows as often, so chance explains that, and would hide copies."
        )
    if alike > shared:
        what = f"{alike - shared} image(s) of {attacker.name}"
        _warn(f"{what} look like images that the defence has seen.")
    train, *test = own.values()
    both = count_shared(train, *test, tolerance=COPY) if test else 0
    if both > (_by_chance([train], len(*test)) if both else 0):
        _warn(
            f"{attacker.name}: {both} sample(s) are in both training and test data, so scores are "
            "too high."
        )
    text = is_text(attacker.train.first(1))
    near = None if text else _nearest(own, seen, primary.input_shape)
    if near and near["suspicious"]:
        _warn(
            f"{near['near']} of {near['rows']} samples of {attacker.name} lie much nearer to "
            f"{near['sets'][1]} than its rows lie to each other; about {near['by_chance']:.0f} "
            "would by chance. Check that they are no rounded, rescaled or otherwise changed "
            "copies: the audit would flatter the defence."
        )
    return {
        "checked": defender is not None,
        "shared": shared,
        "train_in_test": both,
        "tolerance": COPY,
        **({"alike": alike, "alike_tolerance": ALIKE} if image else {}),
        "compared": {"sets": list(found), "rows": list(map(len, found.values())), "unit": UNIT},
        "nearest": near,
    }


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def _by_chance(own: Sequence[np.ndarray], others: int) -> float:
    """Return how many rows of some sets may be among so many others, by how they repeat rows."""
    expected = (count_repeated(rows) * max(1.0, others / len(rows)) for rows in own)
    return MOST_REPEATED * sum(expected)


def _nearest(
    own: Mapping[str, np.ndarray], seen: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> dict[str, Any] | None:
    """Return the nearness of the two sets that are nearest; None if none has three rows."""
    views: list[Callable[[np.ndarray], np.ndarray]] = [lambda rows: rows]
    if is_image(shape):
        views = [lambda rows: grey(rows, shape[0])]
    elif math.prod(shape) <= WIDTH:  # a column of the sketches is a feature
        views.append(in_own_units)
    found = []
    for view in views:
        mine = {name: view(rows) for name, rows in own.items()}
        for name, rows in seen.items():
            near = nearness(view(rows), *mine.values()) if len(rows) > 2 else []
            found += [{"sets": [m, name], **one} for m, one in zip(mine, near, strict=False)]
    return max(found, key=lambda one: (one["suspicious"], one["near"]), default=None)
