"""Encoded images as a data set: decoded, resized, scaled; what cannot be read is counted."""

from __future__ import annotations

import hashlib
import io
import os
import statistics
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from immunis.core.errors import InputError
from immunis.data.corrupt import MOST_CORRUPT, Corrupt
from immunis.data.sources.pixelcache import PixelCache

Scaling = Literal["imagenet", "clip", "inception"]
SCALINGS = {  # mean and deviation of each channel, as timm's models were trained with
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "inception": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
SIZE = 224  # of images, unless said otherwise
MOST_PIXELS, SIXTEEN = 1 << 26, (1 << 16) - 1
CHUNK = 64  # images scaled at once: small ones stay in a processor's cache
DECODING = 2  # raised whenever ``decode`` makes other pixels of the same image
LARGE = 1 << 14  # bytes of an encoded image from which on threads help to decode it


@dataclass(frozen=True)
class Item:
    """One image: where it is (a path, or its bytes under a name) and its class."""

    source: Path | bytes
    label: int
    name: str

    def content(self) -> bytes:
        """The encoded image."""
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()

    def key(self) -> bytes:
        """Hash of the encoded image; of its name where it cannot be read, as no other's is."""
        try:
            return hashlib.sha256(self.content()).digest()
        except OSError:
            return hashlib.sha256(f"unreadable {self.name}".encode()).digest()

    def length(self) -> int:
        """Bytes of the encoded image; -1 where it cannot be found."""
        if isinstance(self.source, bytes):
            return len(self.source)
        try:
            return os.path.getsize(self.source)
        except OSError:
            return -1

    def mark(self) -> str:
        """What changes where the content does: a hash, or a file's place, size and date."""
        if isinstance(self.source, bytes):
            return hashlib.sha256(self.source).hexdigest()
        try:
            found = self.source.stat()
        except OSError:
            return "missing"
        return f"{self.source.resolve()} {found.st_size} {found.st_mtime_ns}"


class Images(Dataset):
    r"""Decoded, resized, normalised images: float32 (3, size, size) and a class.

    The shorter side is resized to ``size`` and the centre is kept. What cannot be decoded
    comes as ``Corrupt``, which tasks skip and count. With ``raw`` pixels come as uint8, a
    quarter of the bytes, and ``finish`` scales them on the device. With ``cached`` each is
    decoded once and read from disk from then on, with ``on_device`` a GPU decodes JPEGs itself.
    """

    def __init__(
        self,
        items: Sequence[Item],
        size: int,
        classes: Sequence[str] | None = None,
        scaling: Scaling = "imagenet",
        raw: bool = False,
        cache: PixelCache | None = None,
        device: bool = False,
    ) -> None:
        self.items, self.size, self.classes = list(items), size, classes
        self.scaling, self.raw, self.cache, self.device = scaling, raw, cache, device

    def _but(self, **changes: Any) -> Images:
        return Images(**{**vars(self), **changes})

    def having(self, items: Sequence[Item]) -> Images:
        """Some of the images, shown alike."""
        return self._but(items=items)

    def as_raw(self) -> Images:
        """The same images as uint8."""
        return self._but(raw=True)

    def on_device(self) -> Images:
        """The same images, decoded by the GPU they are sent to; on a CPU as ever."""
        return self._but(device=True)

    def sent(self, device: torch.device) -> tuple[Dataset, dict[str, Any], Callable | None]:
        """How images travel to a device: what to load, the loader's options, and what unpacks."""
        if not self.device or device.type != "cuda":
            return self.as_raw(), {}, None
        from immunis.data.sources.ondevice import Decoder, Encoded, packed

        return Encoded(self), {"collate_fn": packed}, Decoder(self.size, device)

    def cached(self, folder: str | Path) -> Images:
        """The same images, with decoded pixels kept in a folder."""
        import PIL

        marks = [(item.name, item.mark()) for item in self.items]
        cache = PixelCache(folder, marks, self.size, f"{DECODING} Pillow {PIL.__version__}")
        return self._but(cache=cache)

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
        """Hash of every image's name, encoded size and class, and of how it is shown."""
        shown = f"{self.size} {self.scaling}{' device' if self.device else ''}"
        total = hashlib.sha256(shown.encode())
        for item in self.items:
            total.update(f"{Path(item.name).name} {item.length()} {item.label}\n".encode())
        return f"files-{total.hexdigest()[:32]}-{len(self)}"

    def pixels(self, index: int) -> Tensor | Corrupt:
        """One image as uint8."""
        item = self.items[index]
        kept = self.cache.read(item.name) if self.cache is not None else None
        if kept is not None:
            return kept
        try:
            found = decode(item.content(), self.size)
        except Exception as error:  # a decoder meets arbitrary bytes: any failure is the file's
            said = str(error).partition(" <")[0]  # without the address of a buffer
            return Corrupt(item.name, f"{type(error).__name__}: {said}")
        if self.cache is not None:
            self.cache.write(item.name, found)
        return found


def decode(content: bytes, size: int) -> Tensor:
    """Decode an image to uint8 (3, size, size): shorter side resized, centre kept."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        if image.width * image.height > MOST_PIXELS:
            raise InputError(f"{image.width}×{image.height} pixels; at most {MOST_PIXELS}")
        image.draft("RGB", (size, size))  # lets JPEG decode at a smaller scale
        picture = _eight_bits(image).convert("RGB")
    if picture.size != (size, size):  # only the centre square is resized: the rest costs time
        side = min(picture.size)
        left, top = ((length - side) / 2 for length in picture.size)
        box = (left, top, left + side, top + side)
        picture = picture.resize((size, size), Image.Resampling.BICUBIC, box)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _eight_bits(image: Any) -> Any:
    """An image of 16 bits a pixel as one of 8; Pillow would cut off at 255.

    Raises:
        InputError: for 32 bits, of which nobody says where white is.
    """
    from PIL import Image

    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > SIXTEEN:
        raise InputError(f"pixels of 32 bits ({image.mode}); expected 8 or 16")
    return Image.fromarray((values // 257).astype(np.uint8))


def normalised(image: Tensor, scaling: Scaling = "imagenet") -> Tensor:
    """uint8 pixels (…, 3, H, W) to float32, less a mean and over a deviation per channel."""
    mean, std = (torch.tensor(v, device=image.device)[:, None, None] for v in SCALINGS[scaling])
    return image.to(torch.float32, copy=True).div_(255).sub_(mean).div_(std)


def load(data: Images, where: str) -> tuple[Tensor, Tensor]:
    """Decode a whole data set into memory; skips and counts what is corrupt.

    Large images are decoded on all cores. Small ones hardly leave the interpreter's lock, and
    threads that wait for it take longer than one alone.
    """

    def chunk(start: int) -> list[Tensor | Corrupt]:
        return [data.pixels(row) for row in range(start, min(start + CHUNK, len(data)))]

    some = [item.length() for item in data.items[:: max(1, len(data) // CHUNK)]]
    large = bool(some) and statistics.median(some) >= LARGE
    with ThreadPoolExecutor(None if large else 1) as pool:
        found = [pixels for part in pool.map(chunk, range(0, len(data), CHUNK)) for pixels in part]
    bad = [item for item in found if isinstance(item, Corrupt)]
    if len(bad) > max(1, MOST_CORRUPT * len(found)):
        raise InputError(
            f"{where}: {len(bad)} of {len(found)} images cannot be read, the first {bad[0].name} "
            f"({bad[0].reason}); at most {MOST_CORRUPT:.0%}, or one, are skipped. Check the files."
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
    inputs = torch.empty(len(good), *good[0][0].shape, dtype=torch.float32)
    for start in range(0, len(good), CHUNK):
        part = torch.stack([x for x, _ in good[start : start + CHUNK]])
        inputs[start : start + CHUNK] = data.finish(part)
    return inputs, torch.tensor([label for _, label in good])
