"""JPEGs that travel to a GPU as they are and are decoded there, by torchvision's nvJPEG.

A GPU takes more images a second than a few cores decode. Workers then only read files; what
nvJPEG cannot decode (other formats, CMYK, files cut short) they decode themselves, as ever.
Pixels differ from Pillow's by a few levels.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from immunis.core.errors import SettingsError
from immunis.data.corrupt import Corrupt
from immunis.data.sources.pictures import MOST_PIXELS, Images, decode

END = b"\xff\xd9"  # of a JPEG that was not cut short
AT_ONCE = 1 << 26  # pixels that are on the device at full size


class Letter(NamedTuple):
    """One image on its way: its bytes and number of pixels, or its pixels as shown and 0."""

    content: Tensor
    pixels: int
    label: int
    name: str


class Parcel(NamedTuple):
    """The images of a batch in one piece of memory, and those that could not be read."""

    content: Tensor
    lengths: list[int]
    pixels: list[int]
    labels: Tensor
    names: list[str]
    bad: list[Corrupt]


class Encoded(Dataset):
    """Images as letters."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Letter | Corrupt:
        item = self.images.items[index]
        try:
            content = item.content()
        except OSError as error:
            return Corrupt(item.name, f"{type(error).__name__}: {error}")
        if size := _suits(content):
            data = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
            return Letter(data, size, item.label, item.name)
        pixels = self.images.pixels(index)
        if isinstance(pixels, Corrupt):
            return pixels
        return Letter(pixels.flatten(), 0, item.label, item.name)


def _suits(content: bytes) -> int:
    """Number of pixels of an image that nvJPEG decodes as Pillow would; 0 for others."""
    from PIL import Image

    if not content.rstrip(b"\0").endswith(END):
        return 0
    try:
        with Image.open(io.BytesIO(content)) as image:
            size = image.width * image.height
            plain = image.format == "JPEG" and image.mode in ("RGB", "L")
            return size if plain and size <= MOST_PIXELS else 0
    except Exception:  # as in Images.pixels, which says what is wrong
        return 0


def packed(letters: list[Letter | Corrupt]) -> Parcel:
    """Collate letters, in a worker."""
    good = [letter for letter in letters if isinstance(letter, Letter)]
    empty = torch.empty(0, dtype=torch.uint8)
    return Parcel(
        torch.cat([letter.content for letter in good] or [empty]),
        [len(letter.content) for letter in good],
        [letter.pixels for letter in good],
        torch.tensor([letter.label for letter in good]),
        [letter.name for letter in good],
        [letter for letter in letters if isinstance(letter, Corrupt)],
    )


class Decoder:
    """Parcels to uint8 pixels (n, 3, size, size) and labels, and a list of what is corrupt.

    Raises:
        SettingsError: where torchvision is missing, or cannot decode on the device.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        try:
            from torchvision.io import ImageReadMode, decode_jpeg
        except ImportError as error:
            raise SettingsError(
                "decode = 'device' needs torchvision: pip install 'immunis[vision]'"
            ) from error
        self.size, self.device = size, device
        self._decode: Callable[..., Any] = lambda contents: decode_jpeg(
            contents, mode=ImageReadMode.RGB, device=device
        )
        try:
            self._decode([_smallest()])
        except RuntimeError as error:
            raise SettingsError(
                f"decode = 'device': torchvision cannot decode on {device} ({str(error)[:200]}). "
                "Install a build of it with nvJPEG, or say decode = 'cpu'."
            ) from error
        # a stream of its own: decoding does not wait for the steps that train meanwhile
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, parcel: Parcel) -> tuple[tuple[Tensor, Tensor] | None, list[Corrupt]]:
        """Decode a parcel; what came back is ready for any stream."""
        if self._stream is None:
            return self._unpacked(parcel)
        with torch.cuda.stream(self._stream):
            found = self._unpacked(parcel)
        self._stream.synchronize()
        return found

    def _unpacked(self, parcel: Parcel) -> tuple[tuple[Tensor, Tensor] | None, list[Corrupt]]:
        letters = parcel.content.split(parcel.lengths)
        shape = (3, self.size, self.size)
        pixels = torch.empty(len(letters), *shape, dtype=torch.uint8, device=self.device)
        bad = dict[int, Corrupt]()
        part, total = list[int](), 0
        for row, size in enumerate(parcel.pixels):
            if not size:
                pixels[row] = letters[row].view(shape).to(self.device)
                continue
            if part and total + size > AT_ONCE:
                bad |= self._show(part, letters, parcel.names, pixels)
                part, total = [], 0
            part, total = [*part, row], total + size
        bad |= self._show(part, letters, parcel.names, pixels)
        good = [row for row in range(len(letters)) if row not in bad]
        found = (pixels[good] if bad else pixels, parcel.labels[good]) if good else None
        return found, [*parcel.bad, *bad.values()]

    def _show(
        self, rows: list[int], letters: Sequence[Tensor], names: list[str], pixels: Tensor
    ) -> dict[int, Corrupt]:
        """Decode some rows into ``pixels``; those that cannot be are returned."""
        bad, shapes = dict[int, Corrupt](), dict[tuple[int, int], list[tuple[int, Tensor]]]()
        for row, picture in zip(rows, self._pictures([letters[r] for r in rows]), strict=True):
            if isinstance(picture, Tensor):
                shapes.setdefault((picture.shape[-2], picture.shape[-1]), []).append((row, picture))
            else:
                bad[row] = Corrupt(names[row], picture)
        for alike in shapes.values():
            together = torch.stack([picture for _, picture in alike])
            pixels[[row for row, _ in alike]] = shown(together, self.size)
        return bad

    def _pictures(self, contents: Sequence[Tensor]) -> list[Tensor | str]:
        """Each image, or why there is none; halves are tried alone where one spoils the batch."""
        if not contents:
            return []
        try:
            return self._decode(list(contents))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if "CUDA error" in str(error):  # the device's fault, and no image's
                raise
        if len(contents) > 1:
            half = len(contents) // 2
            return self._pictures(contents[:half]) + self._pictures(contents[half:])
        try:
            picture = decode(contents[0].numpy().tobytes(), self.size)
        except Exception as error:  # as in Images.pixels
            return [f"{type(error).__name__}: {error}"]
        return [picture.to(self.device)]


def _smallest() -> Tensor:
    """A JPEG of a few pixels, to try a decoder on."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "JPEG")
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def shown(pictures: Tensor, size: int) -> Tensor:
    """Images (n, 3, H, W) of one shape at the size asked for: the centre square, resized."""
    height, width = pictures.shape[-2:]
    if (height, width) == (size, size):
        return pictures
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    centre = pictures[..., top : top + side, left : left + side].float()
    resized = functional.interpolate(centre, (size, size), mode="bicubic", antialias=True)
    return resized.round_().clamp_(0, 255).to(torch.uint8)
