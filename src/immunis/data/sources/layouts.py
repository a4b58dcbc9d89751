"""Images from folders, Hugging Face parquet, Stanford Cars' devkit, or timm's readers.

Which it is shows in the folder: ``train.parquet`` (or ``[data/]train-*.parquet``), a devkit
beside ``cars_train``, or ``train/CLASS/*.jpg`` as ImageNet and Country211 have it. A folder
``timm:NAME`` goes to ``timm.create_dataset``. Test data is called test, val, valid or
validation. Of parquet the columns ``image`` and ``label`` are read, or else the only ones of bytes
and of integers.
"""

from __future__ import annotations

import io
import json
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from immunis.core.errors import InputError, SettingsError
from immunis.data.sources.common import check_unpacked
from immunis.data.sources.pictures import Images, Item, Scaling, decode, normalised

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff", ".gif")
ROW = 256  # bytes that a row takes in memory beside its image
PACKED, MOST_MAT = 15, 1 << 26  # bytes of Stanford Cars' annotations, unpacked
TIMM = "timm:"  # before a folder that timm is to read
TEST_NAMES = ("test", "val", "valid", "validation")


def read_images(
    folder: str | Path,
    split: str,
    size: int,
    classes: Sequence[str] | None = None,
    scaling: Scaling = "imagenet",
) -> Dataset:
    """Read one split (``"train"`` or ``"test"``) of a data set in any of the known layouts.

    ``classes`` are those of the training split, so that the test split numbers them alike. Of
    several that may be the test split the first that can be used is, so that an unlabelled
    ``test`` does not stand before ``val``.

    Raises:
        InputError: where the folder holds none of them, or lacks a column or file.
    """
    timm, base = str(folder).startswith(TIMM), Path(str(folder).removeprefix(TIMM))
    if not base.is_dir():
        raise InputError(f"image folder {base} does not exist.")
    names = TEST_NAMES if split == "test" else (split,)
    refused: InputError | None = None
    for name in names:
        try:
            data = (_timm if timm else _named)(base, name, size, classes, scaling)
        except InputError as error:
            refused = refused or error
            continue
        if data is not None:
            if refused is not None:
                warnings.warn(f"{base}: {name} is the test data, for {refused}", stacklevel=2)
            return data
    if refused is not None:
        raise refused
    if timm:  # it would read all of the folder
        raise InputError(f"{base} holds no folder {' or '.join(names)} for timm to read.")
    if any(base.glob("**/cars_*_annos*.mat")):
        return Images(_cars(base, split), size, scaling=scaling)
    raise InputError(
        f"{base} holds no {split} images: expected {names[0]}.parquet, {names[0]}/CLASS/*.jpg, or "
        "Stanford Cars' devkit beside its images."
    )


def _named(
    base: Path, name: str, size: int, classes: Sequence[str] | None, scaling: Scaling
) -> Images | None:
    """A split as parquet files or class folders; None where neither is there."""
    places = f"{name}.parquet", f"data/{name}-*.parquet", f"{name}-*.parquet"
    files = next((f for place in places if (f := sorted(base.glob(place)))), [])
    if files:
        found, own = _parquet(files)
        if classes is not None and own is not None and list(classes) != list(own):
            raise InputError(f"{files[0]}: its classes are not those of the training images.")
        return Images(found, size, own if classes is None else classes, scaling)
    if (base / name).is_dir():
        found, classes = _folders(base / name, classes)
        return Images(found, size, classes, scaling)
    return None


def _folders(base: Path, classes: Sequence[str] | None) -> tuple[list[Item], Sequence[str]]:
    found = sorted(entry.name for entry in base.iterdir() if entry.is_dir())
    classes = found if classes is None else classes
    strange = sorted(set(found) - set(classes))
    if strange:
        raise InputError(f"{base}: class {strange[0]!r} is not among the training classes.")
    items = [
        Item(path, label, str(path))
        for label, name in enumerate(classes)
        for path in sorted((base / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    empty = sorted({*classes} - {classes[item.label] for item in items}) if items else []
    if empty and classes is found:
        warnings.warn(
            f"{base}: class {empty[0]!r} holds no images ({len(empty)} such of {len(found)}).",
            stacklevel=4,
        )
    if not items:
        raise InputError(f"{base} holds no images in class folders ({', '.join(SUFFIXES)}).")
    return items, classes


def _parquet(files: Sequence[Path]) -> tuple[list[Item], Sequence[str] | None]:
    """The images of some files, and the names of their classes where the first one has them."""
    import pyarrow.parquet

    items: list[Item] = []
    names = None
    for file in files:
        try:
            with pyarrow.parquet.ParquetFile(file) as table:
                columns = _columns(file, table.schema_arrow)
                names = names or _class_names(table.schema_arrow, columns[1])
                for row, (picture, label) in enumerate(_rows(file, table, *columns)):
                    content = picture["bytes"] if isinstance(picture, dict) else picture
                    if content is None or label is None or label < 0:
                        told = f"{file}, row {row} lacks its image or its label (got {label})."
                        raise InputError(told)
                    items.append(Item(content, label, f"{file.name} row {row}"))
        except (OSError, pyarrow.ArrowException, MemoryError) as error:
            raise InputError(f"{file} is not a readable parquet file: {error}.") from error
    known = names is not None and all(0 <= item.label < len(names) for item in items)
    return items, names if known else None


def _columns(file: Path, schema: Any) -> tuple[str, str]:
    """The columns of images and of labels: ``image``, ``label``, or else the only ones that fit."""
    from pyarrow import types

    def pictures(kind: Any) -> bool:
        return types.is_binary(kind) or types.is_large_binary(kind) or types.is_struct(kind)

    found: list[str] = []
    for name, fits in (("image", pictures), ("label", types.is_integer)):
        fitting = [field.name for field in schema if fits(field.type)]
        given = [name] if name in schema.names else fitting
        if len(given) != 1 or schema.names.count(given[0]) != 1:
            raise InputError(
                f"{file} lacks column {name}; it has {', '.join(schema.names)}. Expected image "
                "(bytes) and label (integer), or one column of either type: drop the others, or "
                "rename it."
            )
        found += given
    return found[0], found[1]


def _class_names(schema: Any, label: str) -> list[str] | None:
    """What Hugging Face's ``datasets`` wrote of the classes' names, if it did."""
    try:
        told = json.loads((schema.metadata or {})[b"huggingface"])
        names = told["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def _rows(file: Path, table: Any, image: str, label: str) -> Iterator[tuple[Any, Any]]:
    """Rows of a parquet file, one at a time: what it says of its sizes is not believed.

    One value may stand for many rows (in the file, or as an Arrow dictionary), so rows are
    counted as they come out, and types that share values between rows are refused.
    """
    from pyarrow import types

    kind, number = (table.schema_arrow.field(name).type for name in (image, label))
    column = image
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind, column = kind.field("bytes").type, f"{image}.bytes"
    if not (types.is_binary(kind) or types.is_large_binary(kind)) or not types.is_integer(number):
        raise InputError(
            f"{file}: expected image bytes and an integer label, got {kind} and {number}."
        )
    size = 0
    for batch in table.iter_batches(batch_size=1, columns=[column, label]):
        size += batch.nbytes + ROW * batch.num_rows
        check_unpacked(file, size)
        yield from zip(batch[image].to_pylist(), batch[label].to_pylist(), strict=True)


def _cars(base: Path, split: str) -> list[Item]:
    """Stanford Cars: ``cars_train`` and ``cars_test`` with the annotations of its devkit."""
    from scipy.io import loadmat

    wanted = "cars_train_annos.mat" if split == "train" else "cars_test_annos_withlabels.mat"
    found = sorted(base.glob(f"**/{wanted}"))
    if not found:
        raise InputError(
            f"{base} holds no {wanted}. It comes with Stanford Cars' devkit (the labels of the "
            "test images as a file of its own)."
        )
    _check_mat(found[0])
    try:
        content = loadmat(found[0], squeeze_me=True)
        if "annotations" not in content:
            raise ValueError("it has no annotations")
        rows = content["annotations"]
        named = [(str(row["fname"]), int(row["class"])) for row in np.atleast_1d(rows)]
    except Exception as error:  # scipy's readers raise what they like on foreign bytes
        raise InputError(f"{found[0]} is not Stanford Cars' annotation file: {error}.") from error
    folder = base / f"cars_{split}"
    for name, _ in named:
        if Path(name).name != name:
            raise InputError(f"{found[0]}: {name!r} is no plain file name.")
    if (folder / folder.name).is_dir():  # as Kaggle packs it
        folder = folder / folder.name
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist: {found[0]} names the images in it.")
    return [Item(folder / name, label - 1, str(folder / name)) for name, label in named]


def _check_mat(path: Path) -> None:
    """Refuse a MATLAB file with a packed element that would unpack to fill the memory."""
    content, place, size = path.read_bytes(), 128, 0
    order = "<" if content[126:128] == b"IM" else ">"
    while place + 8 <= len(content) and size <= MOST_MAT:
        kind, length = struct.unpack_from(f"{order}II", content, place)
        place += 8
        if kind == PACKED:
            with suppress(zlib.error):  # scipy says it better
                packed = content[place : place + length]
                size += len(zlib.decompressobj().decompress(packed, MOST_MAT + 1))
        place += length
    if max(size, len(content)) > MOST_MAT:
        raise InputError(f"{path} holds more than {MOST_MAT:,} bytes; no such devkit does.")


def _timm(
    base: Path, name: str, size: int, classes: Sequence[str] | None, scaling: Scaling
) -> Dataset | None:
    """A folder as timm's own reader sees it; None where there is none."""
    try:
        from timm.data import create_dataset
    except ImportError as error:
        raise SettingsError("timm is not installed: pip install 'immunis[vision]'") from error

    def transform(picture: Any) -> Tensor:
        buffer = io.BytesIO()
        picture.convert("RGB").save(buffer, "PNG")
        return normalised(decode(buffer.getvalue(), size), scaling)

    if not (base / name).is_dir():
        return None
    try:
        data: Any = create_dataset("", root=str(base), split=name, transform=transform)
    except Exception as error:  # timm's readers raise what they like
        raise InputError(f"timm cannot read {base / name}: {error}") from error
    labels_of(data)
    data.classes = sorted(data.reader.class_to_idx, key=data.reader.class_to_idx.get)
    if classes is not None and list(classes) != data.classes:
        raise InputError(f"{base}: classes of {name} are not those of the training images.")
    return data


def labels_of(data: Any) -> list[int]:
    """Class of every sample of a timm data set, without decoding."""
    samples = getattr(getattr(data, "reader", None), "samples", None)
    if samples is None:
        raise InputError(
            f"{type(data).__name__} does not list its labels, so it cannot be split between "
            "defender and attacker; give a timm reader of image folders."
        )
    return [int(label) for _, label in samples]
