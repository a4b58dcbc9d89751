"""Images from folders, Hugging Face parquet, Stanford Cars' devkit, or timm's readers.

Which it is shows in the folder: ``train.parquet`` (or ``data/train-*.parquet``), a devkit
beside ``cars_train``, or ``train/CLASS/*.jpg`` as ImageNet and Country211 have it. A name
``timm:NAME`` goes to ``timm.create_dataset``. Test data is called test, val, valid or
validation.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from immunis.datasets.common import Tasks, data_folder
from immunis.errors import InputError, SettingsError
from immunis.tasks import MOST_CORRUPT, Corrupt, Task

Scaling = Literal["imagenet", "clip", "inception"]
SCALINGS = {  # mean and deviation of each channel, as timm's models were trained with
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "inception": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm"}
TEST_NAMES = ("test", "val", "valid", "validation")
MOST_PIXELS = 1 << 26


@dataclass(frozen=True)
class Item:
    """One image: where it is (a path, or its bytes under a name) and its class."""

    source: Path | bytes
    label: int
    name: str

    def content(self) -> bytes:
        """The encoded image."""
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()


def _size_of(item: Item) -> int:
    try:
        return os.path.getsize(item.source)
    except OSError:
        return -1


class Images(Dataset):
    r"""Decoded, resized, normalised images: float32 (3, size, size) and a class.

    The shorter side is resized to ``size`` and the centre is kept. What cannot be decoded
    comes as ``Corrupt``, which tasks skip and count. With ``raw`` pixels come as uint8, a
    quarter of the bytes, and ``finish`` scales them on the device.
    """

    def __init__(
        self,
        items: Sequence[Item],
        size: int,
        classes: Sequence[str] | None = None,
        scaling: Scaling = "imagenet",
        raw: bool = False,
    ) -> None:
        self.items, self.size, self.classes = list(items), size, classes
        self.scaling, self.raw = scaling, raw

    def having(self, items: Sequence[Item]) -> Images:
        """Other images, shown alike."""
        return Images(items, self.size, self.classes, self.scaling, self.raw)

    def as_raw(self) -> Images:
        """The same images as uint8."""
        return Images(self.items, self.size, self.classes, self.scaling, raw=True)

    def finish(self, pixels: Tensor) -> Tensor:
        """Scale uint8 pixels, wherever they are, as the model expects them."""
        return normalised(pixels, self.scaling)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, int] | Corrupt:
        pixels = self.pixels(index)
        if isinstance(pixels, Corrupt):
            return pixels
        return pixels if self.raw else self.finish(pixels), self.items[index].label

    def fingerprint(self) -> str:
        """Hash of every image's name, encoded size and class, and of the size it is shown at."""
        total = hashlib.sha256(f"{self.size} {self.scaling}".encode())
        for item in self.items:
            bytes_ = item.source if isinstance(item.source, bytes) else None
            length = len(bytes_) if bytes_ is not None else _size_of(item)
            total.update(f"{Path(item.name).name} {length} {item.label}\n".encode())
        return f"files-{total.hexdigest()[:32]}-{len(self)}"

    def pixels(self, index: int) -> Tensor | Corrupt:
        """One image as uint8."""
        item = self.items[index]
        try:
            return decode(item.content(), self.size)
        except Exception as error:  # a decoder meets arbitrary bytes: any failure is the file's
            return Corrupt(item.name, f"{type(error).__name__}: {error}")


def decode(content: bytes, size: int) -> Tensor:
    """Decode an image to uint8 (3, size, size): shorter side resized, centre kept."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        if image.width * image.height > MOST_PIXELS:
            raise InputError(f"{image.width}×{image.height} pixels; at most {MOST_PIXELS}")
        image.draft("RGB", (size, size))  # lets JPEG decode at a smaller scale
        picture = image.convert("RGB")
    if picture.size != (size, size):  # only the centre square is resized: the rest costs time
        side = min(picture.size)
        left, top = ((length - side) / 2 for length in picture.size)
        box = (left, top, left + side, top + side)
        picture = picture.resize((size, size), Image.Resampling.BICUBIC, box)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def normalised(image: Tensor, scaling: Scaling = "imagenet") -> Tensor:
    """uint8 pixels (…, 3, H, W) to float32, less a mean and over a deviation per channel."""
    mean, std = (torch.tensor(v, device=image.device)[:, None, None] for v in SCALINGS[scaling])
    return (image.float() / 255 - mean) / std


def read_images(
    folder: str | Path,
    split: str,
    size: int,
    classes: Sequence[str] | None = None,
    scaling: Scaling = "imagenet",
    root: str | Path = ".",
) -> Dataset:
    """Read one split (``"train"`` or ``"test"``) of a data set in any of the known layouts.

    ``classes`` are those of the training split, so that the test split numbers them alike;
    ``root`` is where timm looks for data.

    Raises:
        InputError: where the folder holds none of them, or lacks a column or file.
    """
    if str(folder).startswith("timm:"):
        return _timm(str(folder).removeprefix("timm:"), split, size, scaling, root)
    base = Path(folder)
    if not base.is_dir():
        raise InputError(f"image folder {base} does not exist.")
    names = TEST_NAMES if split == "test" else (split,)
    for name in names:
        files = sorted(base.glob(f"{name}.parquet")) or sorted(base.glob(f"data/{name}-*.parquet"))
        if files:
            return Images(_parquet(files), size, scaling=scaling)
        if (base / name).is_dir():
            found, classes = _folders(base / name, classes)
            return Images(found, size, classes, scaling)
    if any(base.glob("**/cars_*_annos*.mat")):
        return Images(_cars(base, split), size, scaling=scaling)
    raise InputError(
        f"{base} holds no {split} images: expected {names[0]}.parquet, {names[0]}/CLASS/*.jpg, or "
        "Stanford Cars' devkit beside its images."
    )


def _folders(base: Path, classes: Sequence[str] | None) -> tuple[list[Item], Sequence[str]]:
    found = sorted(entry.name for entry in base.iterdir() if entry.is_dir())
    classes = found if classes is None else classes
    strange = sorted(set(found) - set(classes))
    if strange:
        raise InputError(f"{base}: class {strange[0]!r} is not among the training classes.")
    items = [
        Item(path, label, str(path))
        for label, name in enumerate(classes)
        for path in sorted((base / name).glob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not items:
        raise InputError(f"{base} holds no images in class folders ({', '.join(SUFFIXES)}).")
    return items, classes


def _parquet(files: Sequence[Path]) -> list[Item]:
    import pyarrow
    import pyarrow.parquet

    items: list[Item] = []
    for file in files:
        try:
            table = pyarrow.parquet.read_table(file)
        except (OSError, pyarrow.ArrowException) as error:
            raise InputError(f"{file} is not a readable parquet file: {error}.") from error
        missing = {"image", "label"} - set(table.column_names)
        if missing:
            raise InputError(
                f"{file} lacks column {' and '.join(sorted(missing))}; it has "
                f"{', '.join(table.column_names)}. Expected image (bytes) and label (integer)."
            )
        pictures, labels = table["image"].to_pylist(), table["label"].to_pylist()
        for row, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
            content = picture.get("bytes") if isinstance(picture, dict) else picture
            if not isinstance(content, bytes) or not isinstance(label, int):
                raise InputError(
                    f"{file}, row {row}: expected image bytes and an integer label, got "
                    f"{type(content).__name__} and {type(label).__name__}."
                )
            items.append(Item(content, label, f"{file.name} row {row}"))
    return items


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
    try:
        rows = loadmat(found[0], squeeze_me=True)["annotations"]
        named = [(str(row["fname"]), int(row["class"])) for row in np.atleast_1d(rows)]
    except Exception as error:  # scipy's readers raise what they like on foreign bytes
        raise InputError(f"{found[0]} is not Stanford Cars' annotation file: {error}.") from error
    folder = base / f"cars_{split}"
    for name, _ in named:
        if Path(name).name != name:
            raise InputError(f"{found[0]}: {name!r} is no plain file name.")
    return [Item(folder / name, label - 1, str(folder / name)) for name, label in named]


def _timm(name: str, split: str, size: int, scaling: Scaling, root: str | Path) -> Dataset:
    try:
        from timm.data import create_dataset
    except ImportError as error:
        raise SettingsError("timm is not installed: pip install 'immunis[vision]'") from error

    def transform(picture: Any) -> Tensor:
        buffer = io.BytesIO()
        picture.convert("RGB").save(buffer, "PNG")
        return normalised(decode(buffer.getvalue(), size), scaling)

    where = "validation" if split == "test" else "train"
    try:
        data = create_dataset(name, root=str(root), split=where, transform=transform)
    except Exception as error:  # timm's readers raise what they like
        raise InputError(f"timm cannot read {name!r} ({where}) in {root}: {error}") from error
    _labels(data)
    return data


def load(data: Images, where: str) -> tuple[Tensor, Tensor]:
    """Decode a whole data set into memory, on all cores; skips and counts what is corrupt."""
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(data.pixels, range(len(data))))
    bad = [item for item in found if isinstance(item, Corrupt)]
    if len(bad) > max(1, MOST_CORRUPT * len(found)):
        raise InputError(
            f"{where}: {len(bad)} of {len(found)} images cannot be read, the first {bad[0].name} "
            f"({bad[0].reason}); at most {MOST_CORRUPT:.0%} are skipped. Check the files."
        )
    if bad:
        warnings.warn(
            f"{where}: skipped {len(bad)} of {len(found)} images, the first {bad[0].name} "
            f"({bad[0].reason}).",
            stacklevel=2,
        )
    if len(bad) == len(found):
        raise InputError(f"{where}: no image can be read ({bad[0].reason}).")
    good = [
        (x, item.label)
        for x, item in zip(found, data.items, strict=True)
        if not isinstance(x, Corrupt)
    ]
    pixels = torch.stack([x for x, _ in good])
    inputs = torch.cat([data.finish(part) for part in pixels.split(4096)])
    return inputs, torch.tensor([label for _, label in good])


def images(
    primary: str,
    harmful: str,
    transfer: str | None = None,
    size: int = 224,
    memory: bool = False,
    scaling: Scaling = "imagenet",
    folder: str | None = None,
) -> Tasks:
    """Read images: folders, Hugging Face parquet, Stanford Cars' devkit, or timm's readers.

    Within each harmful class every second training image is kept from the defender and
    given to the attacker. Images that occur twice are kept once, and those of the test split
    are dropped from training, so that nobody is scored on what they have seen. ``memory``
    decodes everything once, up front, in an order that does not depend on the layout;
    ``scaling`` is what the model was trained with.
    """
    if size < 8:
        raise SettingsError(f"size={size}: need at least 8 pixels.")

    def parts(name: str, distinct: bool) -> tuple[Any, Any, list[int]]:
        timm = name.startswith("timm:")
        where = name if timm else data_folder(name, folder)
        root = data_folder(".", folder) if timm else "."
        train = read_images(where, "train", size, None, scaling, root)
        classes = getattr(train, "classes", None)
        test = read_images(where, "test", size, classes, scaling, root)
        if memory:
            train, test = _in_order(train, name), _in_order(test, name)
        if distinct and isinstance(train, Images) and isinstance(test, Images):
            train = _distinct(train, test, name)
        labels = [i.label for i in train.items] if isinstance(train, Images) else _labels(train)
        return train, test, labels

    def task(train: Any, test: Any, name: str, labels: Sequence[int]) -> Task:
        if memory:
            loaded = [load(p, f"{name} {w}") for p, w in ((train, "train"), (test, "test"))]
            return Task(loaded[0], loaded[1], name)
        classes = len(set(labels)) if set(labels) == set(range(len(set(labels)))) else None
        return Task(train, test, name, classes=classes)

    train, test, labels = parts(primary, False)
    first = task(train, test, Path(primary).name, labels)
    train, test, labels = parts(harmful, True)
    name = Path(harmful).name
    turns: dict[int, int] = {}
    mine: dict[bool, list[int]] = {True: [], False: []}
    for row, label in enumerate(labels):
        turns[label] = turns.get(label, 0) + 1
        mine[turns[label] % 2 == 1].append(row)
    halves = [_subset(train, mine[turn]) for turn in (True, False)]
    defender = task(halves[0], test, name, labels)
    attacker = task(halves[1], test, f"{name} (attacker)", labels)
    others: tuple[Task, ...] = ()
    if transfer is not None:
        train, test, labels = parts(transfer, True)
        others = (task(train, test, Path(transfer).name, labels),)
    return Tasks(first, defender, attacker, others)


def _in_order(data: Dataset, name: str) -> Images:
    """Images sorted by class and content, so that the same ones make the same task."""
    if not isinstance(data, Images):
        raise SettingsError(f"{name}: memory = true goes with folders and parquet, not with timm.")
    keyed = [(item.label, hashlib.sha256(item.content()).digest(), item) for item in data.items]
    return Images(
        [item for *_, item in sorted(keyed, key=lambda k: k[:2])], data.size, data.classes
    )


def _distinct(train: Images, test: Images, name: str) -> Images:
    """Training images without those that repeat, or that the test split holds too."""
    seen = {hashlib.sha256(item.content()).digest() for item in test.items}
    items = []
    for item in train.items:
        key = hashlib.sha256(item.content()).digest()
        if key not in seen:
            items.append(item)
            seen.add(key)
    dropped = len(train) - len(items)
    if dropped:
        warnings.warn(f"{name}: {dropped} training image(s) occur twice; dropped.", stacklevel=4)
    return train.having(items)


def _labels(data: Any) -> list[int]:
    """Class of every sample of a timm data set, without decoding."""
    samples = getattr(getattr(data, "reader", None), "samples", None)
    if samples is None:
        raise InputError(
            f"{type(data).__name__} does not list its labels, so it cannot be split between "
            "defender and attacker; give a timm reader of image folders."
        )
    return [int(label) for _, label in samples]


def _subset(data: Any, rows: list[int]) -> Any:
    if isinstance(data, Images):
        return data.having([data.items[row] for row in rows])
    return Subset(data, rows)
