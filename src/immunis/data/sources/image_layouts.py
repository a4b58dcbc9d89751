"""Lists of images: class folders, Hugging Face parquet, Stanford Cars' devkit, or timm.

The folder shows which it is: ``train.parquet`` (or ``[data/]train-*.parquet``), a devkit beside
``cars_train``, or ``train/CLASS/*.jpg`` as ImageNet and Country211 have it. Of parquet the columns
``image`` and ``label`` are read, or else the only column of bytes and the only one of integers.
"""

from __future__ import annotations

import json
import struct
import warnings
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from immunis.core.errors import InputError
from immunis.core.extras import need
from immunis.core.files import check_unpacked
from immunis.data.columns import numbered
from immunis.data.sources.image_dataset import Images, Item
from immunis.data.transforms import Scaling

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff", ".gif")
ROW = 256  # bytes that a row takes in memory beside its image
LEAST, FEW = 64, 10_000  # bytes that an image takes in a file; rows from which on that is asked
PACKED, MOST_MAT = 15, 1 << 26  # a MATLAB element's type; most bytes of unpacked annotations
TEST_NAMES = ("test", "val", "valid", "validation")
Listing = tuple[list[Item], Sequence[str] | None]  # images, and the names of their classes


def read_images(
    folder: str | Path,
    split: str,
    size: int,
    classes: Sequence[str] | None = None,
    scaling: Scaling = "imagenet",
    timm: bool = False,
) -> Images:
    """Read one split (``"train"`` or ``"test"``) of a data set in any of the known layouts.

    ``classes`` are those of the training split, so that the test split numbers them alike. The
    first usable test split counts, so an unlabelled ``test`` does not hide a labelled ``val``.
    """
    base = Path(folder)
    if not base.is_dir():
        raise InputError(f"image folder {base} does not exist.")
    names = TEST_NAMES if split == "test" else (split,)
    refused: InputError | None = None
    for name in names:
        try:
            found = _from_timm(base / name) if timm else _from_files(base, name, classes)
            if found is None:
                continue
            items, own = found
            if classes is not None and own is not None and list(classes) != list(own):
                raise InputError(f"{base}: classes of {name} are not those of the training images.")
        except InputError as error:
            refused = refused or error
            continue
        if refused is not None:
            warnings.warn(f"{base}: using {name} as test data, because {refused}", stacklevel=2)
        return Images(items, size, own if classes is None else classes, scaling)
    if refused is not None:
        raise refused
    if not timm and any(base.glob("**/cars_*_annos*.mat")):
        return Images(_from_cars(base, split), size, scaling=scaling)
    wanted = f"{' or '.join(names)} of class folders, {names[0]}.parquet, or Stanford Cars' devkit"
    raise InputError(f"{base} holds no {split} images: expected a folder {wanted}.")


def class_folders(
    folder: str | Path,
    size: int,
    classes: Sequence[str] | None = None,
    scaling: Scaling = "imagenet",
) -> Images:
    """Read a folder that has one folder of images a class."""
    items, names = _from_folders(Path(folder), classes)
    return Images(items, size, names, scaling)


def _from_files(base: Path, name: str, classes: Sequence[str] | None) -> Listing | None:
    """List parquet files or class folders; None if the split has neither."""
    for pattern in (f"{name}.parquet", f"data/{name}-*.parquet", f"{name}-*.parquet"):
        if files := sorted(base.glob(pattern)):
            return _from_parquet(files)
    return _from_folders(base / name, classes) if (base / name).is_dir() else None


def _from_folders(base: Path, classes: Sequence[str] | None) -> Listing:
    found = sorted(entry.name for entry in base.iterdir() if entry.is_dir())
    _, known = numbered(found, classes, str(base))
    items = [
        Item(path, label, str(path))
        for label, name in enumerate(known)
        for path in sorted((base / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not items:
        raise InputError(f"{base} holds no images in class folders ({', '.join(SUFFIXES)}).")
    empty = sorted(set(known) - {known[item.label] for item in items})
    if empty and classes is None:
        told = f"{len(empty)} of {len(found)} classes hold no images, among them {empty[0]!r}"
        warnings.warn(f"{base}: {told}.", stacklevel=4)
    return items, known


def _from_parquet(files: Sequence[Path]) -> Listing:
    """List the images of some files; the first file that names its classes decides."""
    import pyarrow.parquet

    items, names, rows, held = list[Item](), None, 0, 0
    for file in files:
        try:
            with pyarrow.parquet.ParquetFile(file) as table:
                image, label = _columns(file, table.schema_arrow)
                names = names or _class_names(table.schema_arrow, label)
                packed = table.schema_arrow.field(image).type.num_fields > 0  # a struct
                column = f"{image}.bytes" if packed else image
                rows += table.metadata.num_rows
                held += file.stat().st_size - table.metadata.serialized_size
                if rows > FEW and rows * LEAST > held:
                    told = f"{file}: more rows than there are images, {rows:,} in {held:,} bytes"
                    raise InputError(f"{told}; expected at least {LEAST} bytes an image.")
                items += _rows(file, table, [column, label])
        except (OSError, pyarrow.ArrowException, MemoryError) as error:
            raise InputError(f"{file} is not a readable parquet file: {error}.") from error
    known = names is not None and all(item.label < len(names) for item in items)
    return items, names if known else None


def _columns(file: Path, schema: Any) -> list[str]:
    """Return the columns ``image`` and ``label``, or else the only ones of these types.

    Arrow dictionaries are refused: one value of theirs may stand for many large rows.
    """
    from pyarrow import types

    def holds_bytes(kind: Any) -> bool:
        if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        return types.is_binary(kind) or types.is_large_binary(kind)

    chosen: list[str] = []
    for name, fits in (("image", holds_bytes), ("label", types.is_integer)):
        named = [field for field in schema if field.name == name]
        found = named or [field for field in schema if fits(field.type)]
        if len(found) != 1 or not fits(found[0].type) or schema.names.count(found[0].name) != 1:
            has = ", ".join(f"{field.name} ({field.type})" for field in schema)
            wanted = "image (bytes) and label (integer), or one column of each type"
            raise InputError(f"{file} lacks column {name}; it has {has}. Expected {wanted}.")
        chosen.append(found[0].name)
    return chosen


def _class_names(schema: Any, label: str) -> list[str] | None:
    """Return the names of the classes if Hugging Face's ``datasets`` wrote them."""
    with suppress(KeyError, TypeError, ValueError, RecursionError):
        told = json.loads((schema.metadata or {})[b"huggingface"])
        names = told["info"]["features"][label]["names"]
        return [str(name) for name in names] if isinstance(names, list) else None
    return None


def _rows(file: Path, table: Any, columns: Sequence[str]) -> list[Item]:
    """Read the rows one at a time and add up their sizes: a header may lie about them."""
    items, size, most = list[Item](), 0, table.metadata.num_rows
    for row, batch in enumerate(table.iter_batches(batch_size=1, columns=columns)):
        if row >= most:
            raise InputError(f"{file} has more rows than the {most:,} that its header says.")
        size += batch.nbytes + ROW
        check_unpacked(file, size)
        content, number = (batch[name.partition(".")[0]][0].as_py() for name in columns)
        content = content["bytes"] if isinstance(content, dict) else content
        if content is None or number is None or number < 0:
            raise InputError(f"{file}, row {row} lacks its image or its label (got {number}).")
        items.append(Item(content, number, f"{file.name} row {row}"))
    return items


def _from_cars(base: Path, split: str) -> list[Item]:
    """List Stanford Cars: ``cars_train`` and ``cars_test`` with the devkit's annotations."""
    from scipy.io import loadmat

    wanted = "cars_train_annos.mat" if split == "train" else "cars_test_annos_withlabels.mat"
    path = min(base.glob(f"**/{wanted}"), default=None)
    if path is None:
        raise InputError(f"{base} holds no {wanted}. It comes with Stanford Cars' devkit.")
    _check_mat(path)
    try:
        rows = np.atleast_1d(loadmat(path, squeeze_me=True)["annotations"])
        named = [(str(row["fname"]), int(row["class"])) for row in rows]
    except Exception as error:  # scipy's readers raise anything on foreign bytes
        raise InputError(f"{path} is not Stanford Cars' annotation file: {error}.") from error
    for name, _ in named:
        if Path(name).name != name:
            raise InputError(f"{path}: expected plain file names, got {name!r}.")
    folder = base / f"cars_{split}"
    if (folder / folder.name).is_dir():  # as Kaggle packs it
        folder = folder / folder.name
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist: {path} names the images in it.")
    return [Item(folder / name, label - 1, str(folder / name)) for name, label in named]


def _check_mat(path: Path) -> None:
    """Refuse a MATLAB file with a packed element that would unpack to fill the memory."""
    content, place, size = path.read_bytes(), 128, 0
    order = "<" if content[126:128] == b"IM" else ">"
    while place + 8 <= len(content) and size <= MOST_MAT:
        kind, length = struct.unpack_from(f"{order}II", content, place)
        packed = content[place + 8 : place + 8 + length]
        if kind == PACKED:
            with suppress(zlib.error):  # scipy reports it better
                size += len(zlib.decompressobj().decompress(packed, MOST_MAT + 1))
        place += 8 + length
    if max(size, len(content)) > MOST_MAT:
        raise InputError(f"{path} holds more than {MOST_MAT:,} bytes; no such devkit does.")


def _from_timm(folder: Path) -> Listing | None:
    """List a folder as timm does: classes are the innermost folders, in natural order."""
    library = need("timm.data")
    if not folder.is_dir():
        return None
    try:
        reader = library.create_dataset("", root=str(folder), search_split=False).reader
    except Exception as error:  # timm's readers raise anything
        raise InputError(f"timm cannot read {folder}: {error}") from error
    items = [Item(Path(path), int(label), str(path)) for path, label in reader.samples]
    return items, sorted(reader.class_to_idx, key=reader.class_to_idx.get)
