"""Image tasks from folders: which image goes to the defender, the attacker and the test."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from immunis.core.errors import InputError, unknown
from immunis.core.settings import require
from immunis.data.sources.common import CACHE, Tasks, by_turns, find_data
from immunis.data.sources.image_dataset import Images, load_images
from immunis.data.sources.image_layouts import read_images
from immunis.data.split import Corrupt
from immunis.data.task import Task
from immunis.data.transforms import SCALINGS, SIZE, Scaling

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
    folder: str | None = None,
) -> Tasks:
    """Read image tasks from class folders, Hugging Face parquet, Stanford Cars or timm.

    Within each harmful class every second training image goes to the attacker. Harmful (and
    transfer) images that occur twice are kept once, and images of the test split are dropped from
    training, so nobody is scored on what they have seen. Primary images are taken as they are.

    ``timm:NAME`` lets timm list the folder ``NAME``. ``memory`` decodes everything once, in an
    order that does not depend on the layout. ``cache`` keeps decoded pixels in ``$IMMUNIS_CACHE``
    or ``~/.cache/immunis/pixels``. ``decode="device"`` lets a GPU decode JPEGs.
    """
    require(size >= 8, f"size={size}: need at least 8 pixels.")
    require(primary != harmful, f"primary and harmful are both {primary!r}; expected two.")
    require(decode in ("cpu", "device"), f"decode={decode!r}: expected 'cpu' or 'device'.")
    device = decode == "device"
    require(not (device and (memory or cache)), "decode = 'device' excludes memory and cache.")
    if scaling not in SCALINGS:
        raise unknown("scaling", scaling, SCALINGS)
    place = os.environ.get("IMMUNIS_CACHE") or Path.home() / CACHE / "pixels"

    def splits(name: str) -> tuple[Images, Images]:
        plain = name.removeprefix(TIMM)
        where = find_data(folder, "Pass --data, or set $IMMUNIS_DATA.", plain)

        def read(split: str, classes: Sequence[str] | None = None) -> Images:
            found = read_images(where, split, size, classes, scaling, timm=plain != name)
            if cache:
                found = found.cached(place)
            if memory:  # equal images make equal tasks, in whatever layout
                found.items = sorted(found.items, key=lambda item: (item.label, item.key()))
            found.on_device = device
            return found

        train = read("train")
        test = read("test", train.classes)
        if new := {item.label for item in test.items} - {item.label for item in train.items}:
            came = f"test images have labels that no training image has, among them {min(new)}"
            raise InputError(f"{name}: {came}. Give training images of all classes.")
        return train, test

    def task(train: Images, test: Images, name: str, rows: Sequence[int] | None = None) -> Task:
        labels = {item.label for item in train.items}
        classes = len(labels) if labels == set(range(len(labels))) else None
        part = train if rows is None else replace(train, items=[train.items[row] for row in rows])
        both: tuple[Any, Any] = part, test
        if memory:
            both = load_images(part, f"{name} train"), load_images(test, f"{name} test")
        return Task(*both, name, classes=classes, names=train.classes)

    first = task(*splits(primary), Path(primary).name)
    train, test = splits(harmful)
    train, name = _without_copies(train, test, harmful), Path(harmful).name
    mine, theirs = by_turns(item.label for item in train.items)
    both = task(train, test, name, mine), task(train, test, f"{name} (attacker)", theirs)
    if transfer is None:
        return Tasks(first, *both)
    train, test = splits(transfer)
    other = task(_without_copies(train, test, transfer), test, Path(transfer).name)
    return Tasks(first, *both, (other,))


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
