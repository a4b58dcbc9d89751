"""Both parts of a task as people have them: folders and lists of images, Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset

from immunis.core.errors import InputError, unknown
from immunis.data.columns import class_names, label_column, numbered
from immunis.data.transforms import SCALINGS, Scaling, normalised

if TYPE_CHECKING:
    from immunis.data.sources.image_dataset import Images

TESTS = ("test", "val", "valid", "validation")  # in the order in which they are looked for


class Rows(Dataset):
    """A Hugging Face data set with a transform of its own, row by row: each is a dict."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.classes = class_names(source, label_column(source.column_names, "data set"))

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        return self.source[index]


def parts_of(train: Any, test: Any, size: int, scaling: Scaling, where: str) -> tuple[Any, Any]:
    """Return training and test data; images become a data set that decodes them when read.

    A path names a folder with one folder of images a class, or with ``train`` and ``test`` of
    those (or of parquet). A ``DatasetDict`` gives both of its parts. Lists of Pillow's images
    become tensors. All else is as it came.

    Raises:
        InputError: for a folder that does not exist or holds no images, and for streamed data.
    """
    if isinstance(scaling, str) and scaling not in SCALINGS:
        raise unknown("scaling", scaling, SCALINGS)
    if isinstance(train, Mapping) and "train" in train and hasattr(train["train"], "column_names"):
        named = next((train[name] for name in TESTS if name in train), None)
        train, test = train["train"], named if test is None else test
    if isinstance(train, str | Path):
        return _folders(Path(train), test, size, scaling, where)
    first = _part(train, size, scaling, f"{where} train")
    names = getattr(first, "classes", None)
    return first, _part(test, size, scaling, f"{where} test", names)


def _folders(base: Path, test: Any, size: int, scaling: Scaling, where: str) -> tuple[Any, Any]:
    from immunis.data.sources.image_layouts import class_folders, read_images

    for part, path in (("train", base), ("test", test)):
        if isinstance(path, str | Path) and not Path(path).is_dir():
            raise InputError(
                f"{where} {part}: {path} is no folder. A path names a folder of images, with one "
                "folder a class; for text or tables give (inputs, labels)."
            )
    if test is not None or not _has(base, "train"):
        first = class_folders(base, size, scaling=scaling)
        if isinstance(test, str | Path):
            return first, class_folders(Path(test), size, first.classes, scaling)
        return first, test
    first = read_images(base, "train", size, scaling=scaling)
    if not any(_has(base, name) for name in TESTS):
        return first, None
    return first, read_images(base, "test", size, first.classes, scaling)


def _has(base: Path, name: str) -> bool:
    patterns = (f"{name}.parquet", f"{name}-*.parquet", f"data/{name}-*.parquet")
    return (base / name).is_dir() or any(any(base.glob(pattern)) for pattern in patterns)


def _part(
    source: Any, size: int, scaling: Scaling, where: str, known: Sequence[str] | None = None
) -> Any:
    """Return a Hugging Face data set of images as ``Images``, one with a transform as ``Rows``."""
    if isinstance(source, tuple | list) and len(source) == 2:
        return _pixels(source[0], size, scaling), source[1]
    if isinstance(source, Mapping):
        return {name: _pixels(values, size, scaling) for name, values in source.items()}
    if not (hasattr(source, "column_names") and hasattr(source, "features")):
        return source
    if not hasattr(source, "__len__"):
        raise InputError(
            f"{where}: a streamed data set came, which has no length. Load it whole, or take rows: "
            "Dataset.from_list(list(data.take(1000)))."
        )
    shown = (getattr(source, "format", None) or {}).get("type")
    if shown == "custom":
        return Rows(source)
    kinds = dict(source.features or {})
    image = next((name for name, kind in kinds.items() if type(kind).__name__ == "Image"), None)
    if image is None or shown is not None:
        return source
    return _images(source, image, size, scaling, where, known)


def _pixels(values: Any, size: int, scaling: Scaling) -> Any:
    """Return a list of Pillow's images as float32 (n, 3, size, size); other values as they are."""
    if not isinstance(values, tuple | list) or not len(values) or not _is_picture(values[0]):
        return values
    from immunis.data.sources.decode import fitted

    if strange := [value for value in values if not _is_picture(value)]:
        raise InputError(f"{type(strange[0]).__name__} came among images; give images alone.")
    return torch.stack([normalised(fitted(image, size), scaling) for image in values])


def _is_picture(value: Any) -> bool:
    return type(value).__module__.startswith("PIL.")


def _images(
    source: Any, image: str, size: int, scaling: Scaling, where: str, known: Sequence[str] | None
) -> Images:
    from immunis.data.sources.image_dataset import Images, Item

    column = label_column(source.column_names, where)
    encoded = source.cast_column(image, type(source.features[image])(decode=False))[image][:]
    labels, names = list(source[column][:]), class_names(source, column) or known
    if labels and isinstance(labels[0], str):
        labels, names = numbered(labels, known, where)
    items = [
        Item(one["bytes"] or Path(one["path"]), int(label), f"{where} {row}")
        for row, (one, label) in enumerate(zip(encoded, labels, strict=True))
    ]
    return Images(items, size, names, scaling)
