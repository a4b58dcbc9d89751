"""Decoded pixels kept on disk: an image is decoded once, by whichever worker or run meets it first.

A file holds one row of equal length for each image: its checksum, then its pixels. A row that
was never written, or only in part, fails its checksum and is decoded again, so processes need
no lock and a killed run leaves nothing to repair. What cannot be written, or read, is decoded.
"""

from __future__ import annotations

import hashlib
import os
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from immunis.core.errors import InputError

SUM = 4  # bytes of a checksum


class PixelCache:
    """Pixels (3, size, size) of named images in one file of a folder.

    Args:
        folder: where the file is; made if there is none.
        images: name and a mark of the content of every image, in order: the file's name is
            their hash, so other images, or changed ones, get a file of their own.
        size: of the pictures.
        how: what else their pixels depend on, as the decoder's version.

    Raises:
        InputError: where there is no such file and none can be made, or two images share a name.
    """

    def __init__(
        self, folder: str | Path, images: Sequence[tuple[str, str]], size: int, how: str = ""
    ) -> None:
        self._rows = {name: row for row, (name, _) in enumerate(images)}
        if len(self._rows) < len(set(images)):
            raise InputError("two images of one name: the pixel cache tells them apart by it.")
        self._shape = (3, size, size)
        self._bytes = 3 * size * size
        key = hashlib.sha256(repr((how, size, list(images))).encode()).hexdigest()[:32]
        self.path = Path(folder).expanduser() / f"pixels-{size}-{key}.bin"
        self._descriptor: int | None = None
        self._warned = False
        length = len(images) * (SUM + self._bytes)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if os.fstat(self._file()).st_size != length:
                os.truncate(self._file(), length)  # holes until written
        except (OSError, OverflowError) as error:
            raise InputError(f"the pixel cache {self.path} cannot be made: {error}.") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptor": None}

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)  # type: ignore[arg-type]

    def _file(self) -> int:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            except PermissionError:  # another's, which may be read
                self._descriptor = os.open(self.path, os.O_RDONLY)
        return self._descriptor

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            warnings.warn(f"{self.path}: {error}; decoding goes on without it.", stacklevel=3)
        self._warned = True

    def read(self, name: str) -> Tensor | None:
        """Pixels of an image, if they were kept."""
        length = SUM + self._bytes
        try:
            row = bytearray(os.pread(self._file(), length, self._rows[name] * length))
        except OSError as error:
            self._warn(error)
            return None
        sum_, pixels = row[:SUM], memoryview(row)[SUM:]
        if len(row) < length or zlib.crc32(pixels).to_bytes(SUM, "little") != sum_:
            return None
        return torch.from_numpy(np.frombuffer(pixels, np.uint8).reshape(self._shape))

    def write(self, name: str, pixels: Tensor) -> None:
        """Keep the pixels of an image; where that fails, warn once and keep no more."""
        if self._warned:
            return
        content = pixels.contiguous().numpy().tobytes()
        row = zlib.crc32(content).to_bytes(SUM, "little") + content
        try:
            os.pwrite(self._file(), row, self._rows[name] * len(row))
        except OSError as error:
            self._warn(error)
