"""Encoded images as a data set: decoded, scaled, and kept decoded on disk if wanted."""

from __future__ import annotations

import hashlib
import os
import warnings
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from immunis.core.errors import InputError
from immunis.core.files import open_regular
from immunis.data.sources.decode import DECODING, decode
from immunis.data.sources.gpu_decode import Decoder, Encoded, packed
from immunis.data.split import Corrupt, warn_of_corrupt
from immunis.data.transforms import Scaling, normalised

LARGE = 1 << 14  # mean bytes of an encoded image from which threads speed up decoding
CHECKSUM = 4  # bytes


@dataclass(frozen=True)
class Item:
    """One image: its path or its encoded bytes, its class and its name."""

    source: Path | bytes
    label: int
    name: str

    def content(self) -> bytes:
        """Return the encoded image."""
        if isinstance(self.source, bytes):
            return self.source
        with open_regular(self.source) as file:
            return file.read()

    def key(self) -> bytes:
        """Return a hash of the encoded image, or of the name of a file that cannot be read."""
        try:
            return hashlib.sha256(self.content()).digest()
        except OSError:
            return hashlib.sha256(os.fsencode(f"unreadable {self.name}")).digest()

    def length(self) -> int:
        """Return the number of encoded bytes; -1 for a missing file."""
        if isinstance(self.source, bytes):
            return len(self.source)
        return self.source.stat().st_size if self.source.exists() else -1

    def version(self) -> str:
        """Return what changes with the content: a hash, or a file's path, size and date."""
        if isinstance(self.source, bytes) or not self.source.exists():
            return self.key().hex()
        found = self.source.stat()
        return f"{self.source.resolve()} {found.st_size} {found.st_mtime_ns}"


@dataclass(eq=False)
class Images(Dataset):
    """Images as float32 (3, size, size), scaled for a model, and their classes.

    The shorter side is resized to ``size`` and the centre is kept. An image that cannot be decoded
    is ``Corrupt``. ``raw`` images are uint8: a quarter of the bytes, for ``finish`` to scale on the
    device. With ``on_device`` a GPU decodes JPEGs itself.
    """

    items: Sequence[Item]
    size: int
    classes: Sequence[str] | None = None
    scaling: Scaling = "imagenet"
    raw: bool = False
    cache: PixelCache | None = None
    on_device: bool = False

    def cached(self, folder: str | Path) -> Images:
        """Return the same images, with decoded pixels kept in a folder."""
        return replace(self, cache=PixelCache(folder, self.items, self.size))

    def for_device(self, device: torch.device) -> tuple[Dataset, dict[str, Any], Callable | None]:
        """Return the data set to load, the loader's options, and what unpacks its batches."""
        if not self.on_device or device.type != "cuda":
            return replace(self, raw=True), {}, None
        return Encoded(self), {"collate_fn": packed}, Decoder(self.size, device)

    def finish(self, pixels: Tensor) -> Tensor:
        """Scale uint8 pixels as the model expects them."""
        return normalised(pixels, self.scaling)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, int] | Corrupt:
        pixels = self.pixels(index)
        if isinstance(pixels, Corrupt):
            return pixels
        return pixels if self.raw else self.finish(pixels), self.items[index].label

    def fingerprint(self) -> str:
        """Hash every image's file name, encoded size and class, and how it is shown."""
        shown = f"{self.size} {self.scaling}{' device' if self.on_device else ''}"
        total = hashlib.sha256(shown.encode())
        for item in self.items:
            line = f"{Path(item.name).name} {item.length()} {item.label}\n"
            total.update(os.fsencode(line))
        return f"files-{total.hexdigest()[:32]}-{len(self)}"

    def pixels(self, index: int) -> Tensor | Corrupt:
        """Return one image as uint8 (3, size, size)."""
        item = self.items[index]
        if self.cache is not None and (kept := self.cache.read(item)) is not None:
            return kept
        try:
            found = decode(item.content(), self.size)
        except Exception as error:  # decoders raise anything on foreign bytes
            return Corrupt.of(item.name, error)
        if self.cache is not None:
            self.cache.write(item, found)
        return found


def load_images(data: Images, where: str) -> tuple[Tensor, Tensor]:
    """Decode a whole data set into memory, without corrupt images."""
    inputs = torch.empty(len(data), 3, data.size, data.size)
    labels = torch.tensor([item.label for item in data.items])

    def fill(row: int) -> Corrupt | None:
        pixels = data.pixels(row)
        if isinstance(pixels, Corrupt):
            return pixels
        inputs[row] = data.finish(pixels)
        return None

    large = sum(item.length() for item in data.items) >= LARGE * len(data)
    with ThreadPoolExecutor(None if large else 1) as pool:
        found = list(pool.map(fill, range(len(data))))
    if not (bad := [corrupt for corrupt in found if corrupt]):
        return inputs, labels
    warn_of_corrupt(bad[-1], len(bad), len(data), where)
    good = [row for row, corrupt in enumerate(found) if corrupt is None]
    return inputs[good], labels[good]


class PixelCache:
    """Decoded pixels in one file, which all workers and runs share.

    Each image has a row: the checksum of its pixels, then the pixels. A row that was never written,
    or only in part, fails its checksum and is decoded again. So processes need no lock, and a
    killed run leaves nothing to repair. The file's name is a hash of the images' versions.
    """

    def __init__(self, folder: str | Path, items: Sequence[Item], size: int) -> None:
        import PIL

        self._rows = {item: row for row, item in enumerate(items)}
        self._shape, self._length = (3, size, size), CHECKSUM + 3 * size * size
        self._failed = False
        images = [(item.name, item.version()) for item in items]
        key = repr((f"{DECODING} Pillow {PIL.__version__}", size, images)).encode()
        name = f"pixels-{size}-{hashlib.sha256(key).hexdigest()[:32]}.bin"
        self.path = Path(folder).expanduser() / name
        whole = len(items) * self._length
        try:
            if not self.path.exists() or self.path.stat().st_size != whole:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("ab") as file:
                    file.truncate(whole)  # holes until rows are written
        except (OSError, OverflowError) as error:
            raise InputError(f"the pixel cache {self.path} cannot be made: {error}.") from error

    def _at(self, item: Item, mode: str, act: Callable[[Any], Any]) -> Any:
        """Return what ``act`` returns of the file at an image's row; warn once of a failure."""
        try:
            with self.path.open(mode, buffering=0) as file:
                file.seek(self._rows[item] * self._length)
                return act(file)
        except OSError as error:
            if not self._failed:
                warnings.warn(f"{self.path}: {error}; images are decoded instead.", stacklevel=5)
            self._failed = True

    def read(self, item: Item) -> Tensor | None:
        """Return the pixels of an image, or None if they are not there."""
        row = bytearray(self._at(item, "rb", lambda file: file.read(self._length)) or b"")
        pixels = memoryview(row)[CHECKSUM:]
        if len(row) < self._length or row[:CHECKSUM] != _checksum(pixels):
            return None
        return torch.from_numpy(np.frombuffer(pixels, np.uint8).reshape(self._shape))

    def write(self, item: Item, pixels: Tensor) -> None:
        """Keep the pixels of an image, unless the file failed before."""
        if not self._failed:
            content = pixels.contiguous().numpy().tobytes()
            self._at(item, "r+b", lambda file: file.write(_checksum(content) + content))


def _checksum(content: bytes | memoryview) -> bytes:
    return zlib.crc32(content).to_bytes(CHECKSUM, "little")
