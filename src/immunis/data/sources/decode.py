"""How an encoded image becomes pixels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from immunis.core.errors import InputError

MOST_PIXELS, SIXTEEN_BITS = 1 << 26, (1 << 16) - 1
DECODING = 2  # raised whenever ``decode`` makes other pixels of the same image
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF", "GIF")  # no other decoder is run


def decode(content: bytes, size: int) -> Tensor:
    """Decode an image to uint8 (3, size, size), as ``fitted`` does."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        if image.width * image.height > MOST_PIXELS:
            raise InputError(f"{image.width}×{image.height} pixels; at most {MOST_PIXELS}")
        image.draft("RGB", (size, size))  # lets JPEG decode at a smaller scale
        return fitted(image, size)


def fitted(image: Any, size: int) -> Tensor:
    """Return Pillow's image as uint8 (3, size, size): shorter side resized, centre kept."""
    from PIL import Image, ImageOps

    if image.mode.startswith(("I", "F")):  # Pillow would clip 16 bits at 255
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > SIXTEEN_BITS:
            raise InputError(f"pixels of 32 bits ({image.mode}); expected 8 or 16")
        image = Image.fromarray((values // 257).astype(np.uint8))
    found = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(found)).permute(2, 0, 1)
