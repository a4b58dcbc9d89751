"""Image tasks from folders: which image goes to the defender, the attacker and the test."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from immunis.core.errors import InputError, unknown
from immunis.core.places import cache_folder, find_data
from immunis.core.settings import require, whole
from immunis.data.sources.image_dataset import Images, Item, load_images
from immunis.data.sources.image_layouts import read_images
from immunis.data.split import Corrupt
from immunis.data.task import Task, Tasks, by_turns
from immunis.data.transforms import SCALINGS, SIZE, Scaling, mean_and_deviation

TIMM = "timm:"  # prefix of a folder that timm lists


def images(
    primary: str,
    harmful: str,
    transfer: str | None = None,
    size: int = SIZE,
    memory: bool = False,
    scaling: Scaling = "imagenet",
    cache: bool = False,
    decode: Literal["cpu", "device"] = "cpu",
    resplit: int | None = None,
    attacker_times: int = 1,
    folder: str | None = None,
) -> Tasks:
    """Read image tasks from class folders, Hugging Face parquet, Stanford Cars or timm.

    Within each harmful class every second training image goes to the attacker, or
    ``attacker_times`` images for each of the defender's. Harmful (and
    transfer) images that occur twice are kept once, and images of the test split are dropped from
    training, so nobody is scored on what they have seen. Primary images are taken as they are.

    ``timm:NAME`` lets timm list the folder ``NAME``. ``memory`` decodes everything once, in an
    order that does not depend on the layout. ``cache`` keeps decoded pixels in ``$IMMUNIS_CACHE``
    or ``~/.cache/immunis/pixels``. ``decode="device"`` lets a GPU decode JPEGs.

    ``resplit`` is a seed: training and test images of every data set are merged and split again,
    for test images that were looked at too often. Leave it out for a model that was trained on the
    given training images.
    """
    whole(size, "size", 8)
    whole(attacker_times, "attacker_times", 1)
    if resplit is not None:
        whole(resplit, "resplit")
    require(
        primary != harmful, f"primary and harmful are both {primary!r}; expected two data sets."
    )
    require(decode in ("cpu", "device"), f"decode={decode!r}: expected 'cpu' or 'device'.")
    device = decode == "device"
    require(not (device and (memory or cache)), "decode = 'device' excludes memory and cache.")
    if isinstance(scaling, str) and scaling not in SCALINGS:
        raise unknown("scaling", scaling, SCALINGS)
    told = f"scaling={scaling!r}: expected a name, or three means and three deviations above 0."
    mean, deviation = mean_and_deviation(scaling)
    require(len(mean) == len(deviation) == 3 and min(deviation) > 0, told)

    def splits(name: str) -> tuple[Images, Images]:
        plain = name.removeprefix(TIMM)
        where = find_data(folder, "Pass --data, or set $IMMUNIS_DATA.", plain)

        def read(split: str, classes: Sequence[str] | None = None) -> Images:
            return read_images(where, split, size, classes, scaling, timm=plain != name)

        def prepared(found: Images) -> Images:
            if cache:
                found = found.cached(os.environ.get("IMMUNIS_CACHE") or cache_folder() / "pixels")
            if memory:  # equal images make equal tasks, in whatever layout
                found.items = sorted(found.items, key=lambda item: (item.label, item.key()))
            found.on_device = device
            return found

        train = read("train")
        test = read("test", train.classes)
        if new := {item.label for item in test.items} - {item.label for item in train.items}:
            came = f"test images have labels that no training image has, among them {min(new)}"
            raise InputError(f"{name}: {came}. Give training images of all classes.")
        if resplit is not None:
            train, test = split_again(train, test, resplit)
        return prepared(train), prepared(test)

    def held_out(test: Images, name: str) -> Any:
        return load_images(test, f"{name} test") if memory else test

    def task(train: Images, test: Any, name: str, rows: Sequence[int] | None = None) -> Task:
        labels = {item.label for item in train.items}
        classes = len(labels) if labels == set(range(len(labels))) else None
        part = train if rows is None else replace(train, items=[train.items[row] for row in rows])
        pair = load_images(part, f"{name} train") if memory else part
        return Task(pair, test, name, classes=classes, names=train.classes)

    train, test = splits(primary)
    name = Path(primary).name
    first = task(train, held_out(test, name), name)
    train, test = splits(harmful)
    train, name = _without_copies(train, test, harmful), Path(harmful).name
    mine, theirs = by_turns((item.label for item in train.items), attacker_times)
    held = held_out(test, name)  # both are scored on the same
    both = task(train, held, name, mine), task(train, held, f"{name} (attacker)", theirs)
    if transfer is None:
        return Tasks(first, *both)
    train, test = splits(transfer)
    train, name = _without_copies(train, test, transfer), Path(transfer).name
    return Tasks(first, *both, (task(train, held_out(test, name), name),))


def split_again(train: Images, test: Images, seed: int) -> tuple[Images, Images]:
    """Return a data set's images divided anew: every class keeps its numbers in both parts.

    The seed and the images decide, not their order. Copies of an image go to one part.
    """
    rng = np.random.default_rng(seed)
    kept: tuple[list[Item], list[Item]] = [], []
    of = {label: dict[bytes, list[Item]]() for label in {item.label for item in train.items}}
    for item in (*train.items, *test.items):
        of[item.label].setdefault(item.key(), []).append(item)
    wanted = Counter(item.label for item in test.items)
    for label in sorted(of):
        keys = sorted(of[label])
        taken = 0
        for place in rng.permutation(len(keys)):
            copies = of[label][keys[place]]
            fits = taken + len(copies) <= wanted[label]
            kept[fits].extend(copies)
            taken += len(copies) if fits else 0
    return replace(train, items=kept[0]), replace(test, items=kept[1])


def _without_copies(train: Images, test: Images, name: str) -> Images:
    """Drop training images that repeat or that the test split holds too.

    Unreadable files are not copies of one another: each stays, and is counted as corrupt.
    """
    seen = {item.key() for item in test.items}
    items, corrupt = [], dict[bytes, bool]()
    for row, item in enumerate(train.items):
        key = item.key()
        if key in seen and key not in corrupt:
            corrupt[key] = isinstance(train.pixels(row), Corrupt)
        if key not in seen or corrupt[key]:
            items.append(item)
            seen.add(key)
    if not items:
        raise InputError(f"{name}: every training image is also a test image; give other data.")
    if dropped := len(train) - len(items):
        warnings.warn(f"{name}: {dropped} training image(s) occur twice; dropped.", stacklevel=3)
    return replace(train, items=items)
