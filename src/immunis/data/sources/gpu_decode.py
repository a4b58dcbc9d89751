"""JPEGs that travel to a GPU undecoded and are decoded there by torchvision's nvJPEG.

Workers only decode what nvJPEG cannot: other formats, CMYK, files cut short. Pixels differ from
Pillow's by a few levels.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from immunis.core.errors import SettingsError
from immunis.core.extras import need
from immunis.data.sources.decode import MOST_PIXELS, decode
from immunis.data.split import Batch, Corrupt

if TYPE_CHECKING:
    from immunis.data.sources.image_dataset import Images

END = b"\xff\xd9"  # of a complete JPEG
AT_ONCE = 1 << 26  # pixels that are on the device at full size
Sample = tuple[Tensor, int, int, str]  # encoded bytes, pixel count (0: decoded), label, name


class Parcel(NamedTuple):
    """A batch of samples in one piece of memory, and the corrupt ones."""

    content: Tensor
    lengths: Sequence[int]
    pixels: Sequence[int]
    labels: Tensor
    names: Sequence[str]
    bad: list[Corrupt]


class Encoded(Dataset):
    """Images as samples for a ``Decoder``."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample | Corrupt:
        item = self.images.items[index]
        with suppress(Exception):  # Images.pixels reports what is wrong
            content = item.content()
            if count := _pixel_count(content):
                data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
                return data, count, item.label, item.name
        pixels = self.images.pixels(index)
        if isinstance(pixels, Corrupt):
            return pixels
        return pixels.flatten(), 0, item.label, item.name


def _pixel_count(content: bytes) -> int:
    """Return the number of pixels of an image that nvJPEG decodes as Pillow does; 0 for others."""
    from PIL import Image

    if not content.rstrip(b"\0").endswith(END):
        return 0
    with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
        count = image.width * image.height
        plain = image.format == "JPEG" and image.mode in ("RGB", "L")  # MPO opens as well
        return count if plain and count <= MOST_PIXELS else 0


def packed(samples: list[Sample | Corrupt]) -> Parcel:
    """Collate samples, in a worker."""
    good = [sample for sample in samples if not isinstance(sample, Corrupt)]
    bad = [sample for sample in samples if isinstance(sample, Corrupt)]
    contents, pixels, labels, names = zip(*good, strict=True) if good else ((), (), (), ())
    content = torch.cat([torch.empty(0, dtype=torch.uint8), *contents])
    lengths = [len(part) for part in contents]
    return Parcel(content, lengths, pixels, torch.tensor(labels), names, bad)


class Decoder:
    """Decodes parcels to uint8 pixels (n, 3, size, size) and labels, and lists corrupt images."""

    def __init__(self, size: int, device: torch.device) -> None:
        from PIL import Image

        need("torchvision")
        self.size, self.device = size, device
        tiny = io.BytesIO()
        Image.new("RGB", (16, 16)).save(tiny, "JPEG")
        try:
            self._decode([torch.frombuffer(bytearray(tiny.getvalue()), dtype=torch.uint8)])
        except RuntimeError as error:
            cause = f"torchvision cannot decode on {device} ({str(error)[:200]})"
            hint = "Install a build of it with nvJPEG, or set decode = 'cpu'"
            raise SettingsError(f"decode = 'device': {cause}. {hint}.") from error
        # a CUDA stream of its own, so that decoding does not wait for training steps
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def _decode(self, contents: list[Tensor]) -> list[Tensor]:
        from torchvision.io import ImageReadMode, decode_jpeg

        return decode_jpeg(contents, mode=ImageReadMode.RGB, device=self.device)

    def __call__(self, parcel: Parcel) -> tuple[Batch | None, list[Corrupt]]:
        """Decode a parcel; the result is ready for any CUDA stream."""
        with torch.cuda.stream(self._stream):  # does nothing for None
            found = self._unpacked(parcel)
        if self._stream is not None:
            self._stream.synchronize()
        return found

    def _unpacked(self, parcel: Parcel) -> tuple[Batch | None, list[Corrupt]]:
        contents, shape = parcel.content.split(list(parcel.lengths)), (3, self.size, self.size)
        pixels = torch.empty(len(contents), *shape, dtype=torch.uint8, device=self.device)
        bad: dict[int, Corrupt] = {}
        ends = list(itertools.accumulate(parcel.pixels))
        encoded = [row for row, count in enumerate(parcel.pixels) if count]
        for row in set(range(len(contents))) - set(encoded):
            pixels[row] = contents[row].view(shape).to(self.device)
        for _, group in itertools.groupby(encoded, key=lambda row: ends[row] // AT_ONCE):
            rows, shapes = list(group), dict[torch.Size, list[tuple[int, Tensor]]]()
            for row, image in zip(rows, self._images([contents[r] for r in rows]), strict=True):
                if isinstance(image, Tensor):
                    shapes.setdefault(image.shape, []).append((row, image))
                else:
                    bad[row] = Corrupt(parcel.names[row], image)
            for alike in shapes.values():
                places, same = zip(*alike, strict=True)
                pixels[list(places)] = shown(torch.stack(same), self.size)
        good = [row for row in range(len(contents)) if row not in bad]
        batch = (pixels[good] if bad else pixels, parcel.labels[good]) if good else None
        return batch, [*parcel.bad, *bad.values()]

    def _images(self, contents: Sequence[Tensor]) -> list[Tensor | str]:
        """Return each image, or why there is none; if a batch fails, try its halves."""
        try:
            return [*self._decode(list(contents))]
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "CUDA error" in str(error):
                raise  # the device fails, not an image
        if len(contents) > 1:
            half = len(contents) // 2
            return self._images(contents[:half]) + self._images(contents[half:])
        try:
            return [decode(contents[0].numpy().tobytes(), self.size).to(self.device)]
        except Exception as error:  # as in Images.pixels
            return [f"{type(error).__name__}: {error}"]


def shown(pictures: Tensor, size: int) -> Tensor:
    """Return images (n, 3, H, W) of one shape as (n, 3, size, size): the centre square, resized."""
    from torchvision.transforms.v2 import InterpolationMode, functional

    side, cubic = min(pictures.shape[-2:]), InterpolationMode.BICUBIC
    top, left = ((length - side) // 2 for length in pictures.shape[-2:])
    centre = top, left, side, side
    return functional.resized_crop(pictures, *centre, [size, size], cubic, antialias=True)
