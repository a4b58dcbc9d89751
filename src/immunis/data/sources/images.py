"""Image tasks from folders: who gets which image, and none of them twice."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import Dataset, Subset

from immunis.core.errors import InputError, SettingsError, unknown
from immunis.data.corrupt import Corrupt
from immunis.data.sources.common import Tasks, by_turns, data_folder
from immunis.data.sources.layouts import TIMM, labels_of, read_images
from immunis.data.sources.pictures import SCALINGS, SIZE, Images, Scaling, load
from immunis.data.task import Task


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
    """Read images: folders, Hugging Face parquet, Stanford Cars' devkit, or timm's readers.

    Within each harmful class every second training image is kept from the defender and
    given to the attacker. Harmful (and transfer) images that occur twice are kept once, and those
    of the test split are dropped from training, so that nobody is scored on what they have seen.
    Primary images are taken as they are: the same model is scored before and after. ``memory``
    decodes everything once, up front, in an order that does not depend on the layout;
    ``cache`` keeps decoded pixels for later epochs and runs, in ``$IMMUNIS_CACHE`` or
    ``~/.cache/immunis/pixels``; with ``decode="device"`` a GPU decodes JPEGs itself;
    ``scaling`` is what the model was trained with.
    """
    if size < 8:
        raise SettingsError(f"size={size}: need at least 8 pixels.")
    if primary == harmful:
        raise SettingsError(f"primary and harmful are both {primary!r}; expected two data sets.")
    if decode not in ("cpu", "device"):
        raise SettingsError(f"decode={decode!r}: expected 'cpu' or 'device'.")
    if scaling not in SCALINGS:
        raise unknown("scaling", scaling, SCALINGS)
    if decode == "device" and (memory or cache):
        raise SettingsError("decode = 'device' is for images that neither memory nor cache keeps.")

    def parts(name: str, distinct: bool) -> tuple[Any, Any, list[int], Sequence[str] | None]:
        reader = TIMM if name.startswith(TIMM) else ""
        where = f"{reader}{data_folder(name.removeprefix(TIMM), folder)}"
        train = read_images(where, "train", size, None, scaling)
        names = getattr(train, "classes", None)
        test = read_images(where, "test", size, names, scaling)
        if cache:
            place = os.environ.get("IMMUNIS_CACHE") or Path.home() / ".cache" / "immunis" / "pixels"
            both = [_images(part, name, "cache = true") for part in (train, test)]
            train, test = (part.cached(place) for part in both)
        if decode == "device":
            both = [_images(part, name, "decode = 'device'") for part in (train, test)]
            train, test = (part.on_device() for part in both)
        if memory:
            train, test = _in_order(train, name), _in_order(test, name)
        if isinstance(train, Images) and isinstance(test, Images):
            new = {i.label for i in test.items} - {i.label for i in train.items}
            if new:
                raise InputError(
                    f"{name}: test images have labels that no training image has, among them "
                    f"{min(new)}. Leave them out, or give training images of all classes."
                )
            train = _distinct(train, test, name) if distinct else train
        labels = [i.label for i in train.items] if isinstance(train, Images) else labels_of(train)
        return train, test, labels, names

    def task(
        train: Any, test: Any, name: str, labels: Sequence[int], names: Sequence[str] | None
    ) -> Task:
        classes = len(set(labels)) if set(labels) == set(range(len(set(labels)))) else None
        if memory:
            train, test = load(train, f"{name} train"), load(test, f"{name} test")
        return Task(train, test, name, classes=classes, names=names)

    train, test, labels, names = parts(primary, False)
    first = task(train, test, Path(primary).name, labels, names)
    train, test, labels, names = parts(harmful, True)
    name = Path(harmful).name
    halves = [_subset(train, rows) for rows in by_turns(labels)]
    defender = task(halves[0], test, name, labels, names)
    attacker = task(halves[1], test, f"{name} (attacker)", labels, names)
    others: tuple[Task, ...] = ()
    if transfer is not None:
        train, test, labels, names = parts(transfer, True)
        others = (task(train, test, Path(transfer).name, labels, names),)
    return Tasks(first, defender, attacker, others)


def _images(data: Dataset, name: str, setting: str) -> Images:
    if not isinstance(data, Images):
        raise SettingsError(f"{name}: {setting} goes with folders and parquet, not with timm.")
    return data


def _in_order(source: Dataset, name: str) -> Images:
    """Images sorted by class and content, so that the same ones make the same task."""
    data = _images(source, name, "memory = true")
    keyed = [(item.label, item.key(), item) for item in data.items]
    return data.having([item for *_, item in sorted(keyed, key=lambda k: k[:2])])


def _distinct(train: Images, test: Images, name: str) -> Images:
    """Training images without those that repeat, or that the test split holds too.

    Files that cannot be read are no copies of one another: each is left, to be counted.
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
        warnings.warn(f"{name}: {dropped} training image(s) occur twice; dropped.", stacklevel=4)
    return train.having(items)


def _subset(data: Any, rows: list[int]) -> Any:
    if isinstance(data, Images):
        return data.having([data.items[row] for row in rows])
    return Subset(data, rows)
