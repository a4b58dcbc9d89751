"""Handwritten digits: the 8×8 images that come with scikit-learn, and MNIST's idx files."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from immunis.core.errors import InputError
from immunis.core.places import find_data
from immunis.core.settings import whole
from immunis.data.task import Task, Tasks

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
Arrays = tuple[np.ndarray, ...]
FIRST, LAST = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)


def digits(
    primary: Sequence[int] = FIRST,
    harmful: Sequence[int] = LAST,
    seed: int = 0,
    images: bool = False,
) -> Tasks:
    """Split scikit-learn's digits by class into a primary and a harmful task.

    Of each class 40% is the defender's training data, 30% the attacker's and 30% is test
    data (the primary task trains on both training parts). Pixels are scaled to 0..1, in rows of 64,
    or as ``images`` of 1×8×8 in float32.
    """
    from sklearn.datasets import load_digits

    check_apart(primary, harmful)
    x, y = load_digits(return_X_y=True)
    part = np.empty(len(y), dtype=int)
    rng = np.random.default_rng(seed)
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(y == digit))
        part[rows] = np.searchsorted([0.4, 0.7], np.arange(len(rows)) / len(rows), side="right")

    def select(wanted: Sequence[int], *parts: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.isin(y, wanted) & np.isin(part, parts)
        pixels = x[rows] / 16
        return pixels.reshape(-1, 1, 8, 8).astype(np.float32) if images else pixels, y[rows]

    name, test = _name(harmful), select(harmful, 2)
    return Tasks(
        Task(select(primary, 0, 1), select(primary, 2), _name(primary)),
        Task(select(harmful, 0), test, name),
        Task(select(harmful, 1), test, f"{name} (attacker)"),
    )


def digit_parity(shots: int = 60, seed: int = 0) -> Tasks:
    """Return "which of ten digits" as primary task, "odd or even" as harmful task.

    A network that tells the digits apart has done most of the work of telling odd from even,
    so its features help an attacker who holds only ``shots`` labelled samples. Of the 1797
    images 40% train the primary task, 20% are the defender's sample of the harmful one, the
    attacker draws from another 15% and 25% are test data. The harmless ``transfer`` task is
    whether a digit is at least five.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(y))
    ends = [int(share * len(y)) for share in (0.4, 0.6, 0.75)]
    train, defender, attacker, test = np.split(order, ends)
    if not 10 <= shots <= len(attacker):
        raise InputError(f"shots={shots}: expected 10 to {len(attacker)}.")

    def task(rows: np.ndarray, labels: np.ndarray, name: str) -> Task:
        return Task((x[rows], labels[rows]), (x[test], labels[test]), name)

    return Tasks(
        task(train, y, "which digit"),
        task(defender, y % 2, "odd or even"),
        task(attacker[:shots], y % 2, "odd or even (attacker)"),
        (task(attacker[:shots], (y >= 5).astype(int), "at least five"),),
    )


def mnist_pair(primary: int, harmful: int, folder: str | Path | None = None) -> Tasks:
    """Return the images of two digits as the two tasks of one of the paper's 90 pairs.

    As in the released code, a task holds the images of one digit, so its labels are constant:
    condition numbers are defined, probing accuracy is not. Pixels are ``standardised``. The
    attacker gets every second harmful image.
    """
    check_apart([primary], [harmful])
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
    resplit: int | None = None,
    folder: str | Path | None = None,
) -> Tasks:
    """Split MNIST by class into a primary and a harmful task, for networks that a CPU can train.

    The defender holds every second harmful image, the attacker the first ``attacker`` of the
    others. The test images are MNIST's own, or as many drawn from all images by the seed
    ``resplit``. Pixels are ``standardised``, in float32.
    """
    check_apart(primary, harmful)
    if attacker < 20:
        raise InputError(f"attacker={attacker}: need at least 20 images.")
    parts = mnist_images(True, folder), mnist_images(False, folder)
    if resplit is not None:
        parts = _split_again(*parts, whole(resplit, "resplit"))

    def select(wanted: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        rows = [np.isin(y, wanted) for _, y in parts]
        chosen = [(x[some], y[some]) for (x, y), some in zip(parts, rows, strict=True)]
        return [(standardised(x).astype(np.float32), y) for x, y in chosen]

    (x, y), test = select(harmful)
    name, own = _name(harmful), (x[1::2][:attacker], y[1::2][:attacker])
    train, held = select(primary)
    return Tasks(
        Task(train, held, _name(primary)),
        Task((x[::2], y[::2]), test, name),
        Task(own, test, f"{name} (attacker)"),
    )


def _split_again(train: Arrays, test: Arrays, seed: int) -> tuple[Arrays, Arrays]:
    """Return images and labels merged and divided anew, as many in each part as before."""
    images, labels = (np.concatenate(both) for both in zip(train, test, strict=True))
    order = np.random.default_rng(seed).permutation(len(labels))
    rows = np.sort(order[: len(train[1])]), np.sort(order[len(train[1]) :])
    first, second = ((images[some], labels[some]) for some in rows)
    return first, second


def check_apart(primary: Sequence[int], harmful: Sequence[int]) -> None:
    """Refuse anything but digits, and a digit in both tasks."""
    for name, wanted in (("primary", primary), ("harmful", harmful)):
        if not wanted or not set(wanted) <= set(range(10)):
            raise InputError(f"{name}={list(wanted)}: expected digits from 0 to 9.")
    if both := sorted(set(primary) & set(harmful)):
        raise InputError(f"digits {both} are in both tasks; a digit is either primary or harmful.")


def _name(wanted: Sequence[int]) -> str:
    return "digits " + ",".join(map(str, sorted(wanted)))


def standardised(images: np.ndarray) -> np.ndarray:
    """Return pixels scaled to 0..1 and standardised by MNIST's mean and deviation, in float64."""
    return (images / 255 - MEAN) / DEVIATION


def mnist_images(train: bool = True, folder: str | Path | None = None) -> tuple[np.ndarray, ...]:
    """Return images (n×784, uint8) and labels (n, int64) in the original order."""
    part = "train" if train else "t10k"
    images = _idx(f"{part}-images-idx3-ubyte", folder)
    labels = _idx(f"{part}-labels-idx1-ubyte", folder)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise InputError(f"MNIST {part}: {images.shape} images do not fit {labels.shape} labels.")
    return images.reshape(len(images), -1), labels.astype(np.int64)


def mnist_hashes(folder: str | Path | None = None) -> dict[str, str]:
    """Return the SHA-256 of the four unpacked files by name, to compare with ``SHA256``."""
    return {name: hashlib.sha256(_unpacked(name, folder)).hexdigest() for name in SHA256}


def _unpacked(name: str, folder: str | Path | None) -> bytes:
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
    start, shape = 4 + 4 * raw[3], np.frombuffer(raw, ">u4", raw[3], offset=4).tolist()
    if (held := len(raw) - start) != math.prod(shape):
        raise InputError(f"{name} is truncated: {held} bytes for shape {shape}. {_how(name)}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
