"""Image tasks from folders: which image goes to the defender, the attacker and the test."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from immunis.core.errors import InputError, SettingsError, unknown
from immunis.data.corrupt import Corrupt
from immunis.data.sources.common import Tasks, by_turns, find_data
from immunis.data.task import Task
from immunis.data.transforms import SCALINGS, SIZE, Scaling

if TYPE_CHECKING:
    from immunis.data.sources.image_dataset import Images

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

    Args:
        primary: folder of the primary task; ``timm:NAME`` lets timm list the folder ``NAME``.
        harmful: folder of the harmful task.
        transfer: folder of a harmless other task.
        size: width and height of the images.
        memory: decode everything once, in an order that does not depend on the layout.
        scaling: how the model expects pixels to be scaled.
        cache: keep decoded pixels in ``$IMMUNIS_CACHE`` or ``~/.cache/immunis/pixels``.
        decode: ``"device"`` lets a GPU decode JPEGs.
        folder: where the folders lie; see ``find_data``.
    """
    from immunis.data.sources.image_dataset import load_images
    from immunis.data.sources.image_layouts import read_images

    if size < 8:
        raise SettingsError(f"size={size}: need at least 8 pixels.")
    if primary == harmful:
        raise SettingsError(f"primary and harmful are both {primary!r}; expected two data sets.")
    if decode not in ("cpu", "device"):
        raise SettingsError(f"decode={decode!r}: expected 'cpu' or 'device'.")
    if scaling not in SCALINGS:
        raise unknown("scaling", scaling, SCALINGS)
    if decode == "device" and (memory or cache):
        raise SettingsError("decode = 'device' excludes memory and cache: use one of the three.")
    place = os.environ.get("IMMUNIS_CACHE") or Path.home() / ".cache" / "immunis" / "pixels"

    def splits(name: str) -> tuple[Images, Images]:
        plain = name.removeprefix(TIMM)
        where = find_data(folder, "Pass --data, or set $IMMUNIS_DATA.", plain)
        read = read_images(where, "train", size, None, scaling, timm=plain != name)
        both = read, read_images(where, "test", size, read.classes, scaling, timm=plain != name)
        train, test = (replace(part, on_device=decode == "device") for part in both)
        if cache:
            train, test = train.cached(place), test.cached(place)
        if memory:
            train, test = _in_order(train), _in_order(test)
        new = {item.label for item in test.items} - {item.label for item in train.items}
        if new:
            raise InputError(
                f"{name}: test images have labels that no training image has, among them "
                f"{min(new)}. Leave them out, or give training images of all classes."
            )
        return train, test

    def task(train: Images, test: Images, name: str, rows: Sequence[int] | None = None) -> Task:
        labels = {item.label for item in train.items}
        classes = len(labels) if labels == set(range(len(labels))) else None
        part = train if rows is None else replace(train, items=[train.items[row] for row in rows])
        if memory:
            kept = load_images(part, f"{name} train"), load_images(test, f"{name} test")
            return Task(*kept, name, classes=classes, names=train.classes)
        return Task(part, test, name, classes=classes, names=train.classes)

    first = task(*splits(primary), Path(primary).name)
    train, test = splits(harmful)
    train = _without_copies(train, test, harmful)
    name = Path(harmful).name
    mine, theirs = by_turns(item.label for item in train.items)
    defender = task(train, test, name, mine)
    attacker = task(train, test, f"{name} (attacker)", theirs)
    if transfer is None:
        return Tasks(first, defender, attacker)
    train, test = splits(transfer)
    other = task(_without_copies(train, test, transfer), test, Path(transfer).name)
    return Tasks(first, defender, attacker, (other,))


def _in_order(data: Images) -> Images:
    """Sort images by class and content, so that equal images make equal tasks."""
    return replace(data, items=sorted(data.items, key=lambda item: (item.label, item.key())))


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
    dropped = len(train) - len(items)
    if dropped:
        warnings.warn(f"{name}: {dropped} training image(s) occur twice; dropped.", stacklevel=3)
    return replace(train, items=items)
