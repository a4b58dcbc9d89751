"""Large arrays on disk: what an audit has read, mapped into memory where it is used.

Attacks look at the data and the features of one model at a time, and an audit holds those of many.
A file that is mapped takes memory for the parts in use alone, and worker processes share it.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import BinaryIO

import numpy as np
from filelock import FileLock, Timeout

from immunis.core.errors import OutputError
from immunis.core.releases import MARK, renewed_folder

SMALL = 1 << 24  # bytes of an array that stays in memory
BLOCK = 1 << 26  # bytes that are copied at a time
TEMPORARY = "immunis-"  # how the name of a temporary folder begins
LARGE = 1 << 32  # bytes in files that are told before they are written
NEW = 60.0  # seconds in which a temporary folder is left alone
PLACE = ".immunis-features"  # in the folder of a run
ELSEWHERE = "give another --output (from Python: run={'folder': ...})"


class Memory:
    """Keep arrays in memory, with the interface of ``Shelf``."""

    def put(self, array: np.ndarray) -> np.ndarray:
        """Return an array for keeping."""
        return array

    def join(self, parts: Iterable[np.ndarray]) -> np.ndarray:
        """Return blocks of rows, one or more, as one array."""
        return np.concatenate(list(parts))

    def take(self, array: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return some rows of an array; neither is read as a whole if it is large and mapped."""
        return self.join(array[some] for some in blocks(rows, _rows(array)))

    def drop(self, array: np.ndarray) -> None:
        """Forget an array that is not needed any more."""


MEMORY = Memory()


class Shelf(Memory):
    """Large arrays in files of a temporary folder, which ends with the shelf.

    In ``folder`` what a killed run left is removed first.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        if folder is None:
            _sweep()
            self._place = Path(tempfile.mkdtemp(prefix=TEMPORARY))
            self._lock = FileLock(self._place / MARK)  # ends with its process, however that ends
            self._lock.acquire()
        else:
            self._place = renewed_folder(Path(folder) / PLACE)
        self._count = 0

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the files."""
        rmtree(self._place, ignore_errors=True)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self._place.iterdir())

    def put(self, array: np.ndarray) -> np.ndarray:
        """Return an array as it is if it is small, else as a read-only map of a file."""
        return array if array.nbytes < SMALL else self.join(blocks(array))

    def join(self, parts: Iterable[np.ndarray]) -> np.ndarray:
        """Return blocks of rows, one or more, as one array: small in memory, large in a file.

        Raises:
            OutputError: if the disk is full.
        """
        found: list[np.ndarray] = []
        parts, size = iter(parts), 0
        for part in parts:
            found.append(part)
            if (size := size + part.nbytes) >= SMALL:
                break
        else:
            return np.concatenate(found)
        self._count += 1
        path, count = self._place / f"{self._count}.bin", 0
        try:
            with path.open("wb") as file:
                while found:
                    count += _write(file, found.pop(0))
                for part in parts:
                    count += _write(file, part)
        except OSError as error:
            reached = path.stat().st_size / 1e9
            path.unlink(missing_ok=True)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            told = "the disk is full" if full else str(error.strerror)
            raise OutputError(
                f"cannot keep more than {reached:.1f} GB of data or features in {self._place}: "
                f"{told}. Free room there, or {ELSEWHERE}."
            ) from error
        return np.memmap(path, part.dtype, "r", shape=(count, *part.shape[1:]))

    def drop(self, array: np.ndarray) -> None:
        """Remove the file of an array that is not needed any more."""
        if isinstance(array, np.memmap) and array.filename is not None:
            Path(array.filename).unlink(missing_ok=True)


def check_room(need: int, folder: str | Path | None = None) -> None:
    """Warn where the files of a shelf will take 4 GiB or more.

    Raises:
        OutputError: if the disk has not that much left.
    """
    place = Path(tempfile.gettempdir() if folder is None else folder).absolute()
    while not place.exists():
        place = place.parent
    free = disk_usage(place).free
    told = f"inputs that are not in memory take {need / 1e9:.1f} GB of temporary files in {place}"
    if need > free:
        raise OutputError(f"{told}, which has {free / 1e9:.1f} GB left. Free room, or {ELSEWHERE}.")
    if need >= LARGE:
        left = f"{free / 1e9:.1f} GB are left there"
        warnings.warn(f"{told}, and features of models some more; {left}.", stacklevel=3)


def _sweep() -> None:
    """Remove the temporary folders of this user's shelves whose processes were killed."""
    for mark in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*/{MARK}"):
        with suppress(OSError, Timeout):
            found = mark.parent.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            if mark.lstat().st_mtime > time.time() - NEW:  # it may be locked in a moment
                continue
            with FileLock(mark, timeout=0):
                rmtree(mark.parent, ignore_errors=True)


def blocks(array: np.ndarray, rows: int | None = None) -> Iterator[np.ndarray]:
    """Yield an array in blocks of so many rows, or of 64 MB at most."""
    size = _rows(array) if rows is None else rows
    for start in range(0, max(1, len(array)), size):
        yield array[start : start + size]


def _rows(array: np.ndarray) -> int:
    """Return how many rows make a block."""
    return max(1, BLOCK * len(array) // max(1, array.nbytes))


def _write(file: BinaryIO, part: np.ndarray) -> int:
    file.write(np.ascontiguousarray(part).data)
    return len(part)
