"""MNIST from its original idx files; no torchvision needed."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from immunis.datasets.common import Tasks, data_file
from immunis.errors import InputError
from immunis.tasks import Task

HOW = (
    "Get the four original idx files (train-images-idx3-ubyte.gz and so on) and put them into a "
    "folder mnist/, or point --data or $IMMUNIS_DATA at the folder that holds mnist/."
)
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's training pixels, as the released code uses them


def mnist_images(train: bool = True, folder: str | Path | None = None) -> tuple[np.ndarray, ...]:
    """Return images (n×784, uint8) and labels (n, int64) in the original order."""
    part = "train" if train else "t10k"
    images = _idx(data_file(f"mnist/{part}-images-idx3-ubyte.gz", folder, HOW))
    labels = _idx(data_file(f"mnist/{part}-labels-idx1-ubyte.gz", folder, HOW))
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise InputError(f"MNIST {part}: {images.shape} images do not fit {labels.shape} labels.")
    return images.reshape(len(images), -1), labels.astype(np.int64)


def mnist_pair(primary: int, harmful: int, folder: str | Path | None = None) -> Tasks:
    """Return two digits' images as the two tasks of one of the paper's 90 pairs.

    As in the released code, a task holds the images of one digit only and its labels are
    constant: condition numbers are defined, probing accuracy is not. Pixels are scaled to
    0..1 and standardised by MNIST's mean and deviation. The attacker gets every second
    harmful image.
    """
    if primary == harmful or not {primary, harmful} <= set(range(10)):
        raise InputError(f"digits {primary} and {harmful}: expected two different ones of 0 to 9.")
    images, labels = mnist_images(folder=folder)

    def select(digit: int) -> np.ndarray:
        return (images[labels == digit] / 255 - MEAN) / DEVIATION

    main, other = select(primary), select(harmful)
    return Tasks(
        Task((main, np.full(len(main), primary)), name=f"digit {primary}"),
        Task((other[::2], np.full(len(other[::2]), harmful)), name=f"digit {harmful}"),
        Task((other[1::2], np.full(len(other[1::2]), harmful)), name=f"digit {harmful} (attacker)"),
    )


def _idx(path: Path) -> np.ndarray:
    try:
        with gzip.open(path) as file:
            raw = file.read()
    except (OSError, EOFError) as error:
        raise InputError(f"{path} is damaged ({error}). {HOW}") from error
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise InputError(f"{path} is not an idx file of bytes. {HOW}")
    shape = np.frombuffer(raw, ">i4", raw[3], offset=4)
    start = 4 + 4 * raw[3]
    if len(raw) - start != int(np.prod(shape, dtype=np.int64)):
        raise InputError(f"{path} is truncated: {len(raw) - start} bytes for shape {shape}. {HOW}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
