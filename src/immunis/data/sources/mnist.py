"""MNIST from its original idx files; no torchvision needed."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from immunis.core.errors import InputError
from immunis.data.sources.common import Tasks, find_data
from immunis.data.sources.digits import FIRST, LAST, check_apart, label_of
from immunis.data.task import Task

HOW = (
    "Get the four original idx files (train-images-idx3-ubyte.gz and so on, packed or not) and put "
    "them into a folder mnist/, or point --data or $IMMUNIS_DATA at the folder that holds mnist/."
)
SHA256 = {  # of the unpacked files: packing may differ
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MOST = 1 << 26  # bytes of a file; the largest has 47 million
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's training pixels, as the released code uses them


def mnist_images(train: bool = True, folder: str | Path | None = None) -> tuple[np.ndarray, ...]:
    """Return images (n×784, uint8) and labels (n, int64) in the original order."""
    part = "train" if train else "t10k"
    images = _idx(f"{part}-images-idx3-ubyte", folder)
    labels = _idx(f"{part}-labels-idx1-ubyte", folder)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise InputError(f"MNIST {part}: {images.shape} images do not fit {labels.shape} labels.")
    return images.reshape(len(images), -1), labels.astype(np.int64)


def mnist_pair(primary: int, harmful: int, folder: str | Path | None = None) -> Tasks:
    """Return the images of two digits as the two tasks of one of the paper's 90 pairs.

    As in the released code, a task holds the images of one digit, so its labels are constant:
    condition numbers are defined, probing accuracy is not. Pixels are ``standardised``. The
    attacker gets every second harmful image.
    """
    if primary == harmful or not {primary, harmful} <= set(range(10)):
        raise InputError(f"digits {primary} and {harmful}: expected two different ones of 0 to 9.")
    images, labels = mnist_images(folder=folder)

    def task(digit: int, rows: slice, name: str) -> Task:
        chosen = standardised(images[labels == digit][rows])
        return Task((chosen, np.full(len(chosen), digit)), name=name)

    return Tasks(
        task(primary, slice(None), f"digit {primary}"),
        task(harmful, slice(0, None, 2), f"digit {harmful}"),
        task(harmful, slice(1, None, 2), f"digit {harmful} (attacker)"),
    )


def mnist_digits(
    primary: Sequence[int] = FIRST,
    harmful: Sequence[int] = LAST,
    attacker: int = 1000,
    folder: str | Path | None = None,
) -> Tasks:
    """Split MNIST by class into a primary and a harmful task, for networks that a CPU can train.

    The defender holds every second harmful image, the attacker the first ``attacker`` of the
    others. The test images are MNIST's own. Pixels are ``standardised``, in float32.
    """
    check_apart(primary, harmful)
    if attacker < 20:
        raise InputError(f"attacker={attacker}: need at least 20 images.")

    def select(part: Sequence[np.ndarray], wanted: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        rows = np.isin(part[1], wanted)
        return standardised(part[0][rows]).astype(np.float32), part[1][rows]

    parts = mnist_images(True, folder), mnist_images(False, folder)
    (images, labels), test = (select(part, harmful) for part in parts)
    own = images[1::2][:attacker], labels[1::2][:attacker]
    return Tasks(
        Task(*(select(part, primary) for part in parts), label_of(primary)),
        Task((images[::2], labels[::2]), test, label_of(harmful)),
        Task(own, test, f"{label_of(harmful)} (attacker)"),
    )


def standardised(images: np.ndarray) -> np.ndarray:
    """Return pixels scaled to 0..1 and standardised by MNIST's mean and deviation, in float64."""
    return (images / 255 - MEAN) / DEVIATION


def mnist_hashes(folder: str | Path | None = None) -> dict[str, str]:
    """Return the SHA-256 of the four unpacked files by name, to compare with ``SHA256``."""
    return {name: hashlib.sha256(_unpacked(name, folder)).hexdigest() for name in SHA256}


def _unpacked(name: str, folder: str | Path | None) -> bytes:
    """Return the contents of a file, packed or not."""
    path = find_data(folder, _how(name), f"mnist/{name}.gz", f"mnist/{name}")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(MOST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is damaged ({error}). {_how(name)}") from error
    if len(raw) > MOST:
        raise InputError(f"{path} holds more than {MOST:,} bytes; no MNIST file does. {_how(name)}")
    return raw


def _how(name: str) -> str:
    return f"{HOW} Unpacked, {name} has sha256 {SHA256[name]}."


def _idx(name: str, folder: str | Path | None) -> np.ndarray:
    """Return the array of an idx file: two zero bytes, type 8, dimensions, sizes, then bytes."""
    raw = _unpacked(name, folder)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08" or raw[3] > 3 or len(raw) < 4 + 4 * raw[3]:
        raise InputError(f"{name} is not an idx file of bytes. {_how(name)}")
    shape = np.frombuffer(raw, ">u4", raw[3], offset=4).tolist()
    held = len(raw) - 4 - 4 * raw[3]
    if held != math.prod(shape):
        raise InputError(f"{name} is truncated: {held} bytes for shape {shape}. {_how(name)}")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)
