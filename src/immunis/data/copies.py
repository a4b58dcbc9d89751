"""Rows that two data sets share, at a stated tolerance.

Every row becomes a short vector, its sketch. The distance of two sketches is the root mean square,
over features, of the rows' difference, in units of each feature's own spread: 1.48 times the median
distance from its median. Neither a common offset nor a few outliers change that. A row that was
rounded to fewer bits (float32, bfloat16, float16) gets the sketch of its unrounded original.
The sketch of an image is its lowest frequencies, in units of their deviation: neither the encoding
nor the size of an image changes them much. That of a text is a hash of its tokens, so copies are
equal texts. A k-d tree finds the nearest sketch.

A sketch takes 0.5 kB, of a colour image 1.5 kB. To compare 50,000 rows with as many takes two
seconds, images 15 s; to read the rows takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.fft
import torch
from scipy.spatial import cKDTree
from torch import Tensor
from torch.nn import functional

from immunis.core.errors import InputError
from immunis.data.checks import check_size, hash_rows
from immunis.data.split import Split
from immunis.data.text import is_text

COPY = 1e-6  # rows that are nearer are copies
UNIT = "rms over features, each in units of its spread; of images their total deviation"
NARROW = 1e-6  # of a feature's median: no unit is smaller, so 1e-12 of a value is rounding
ALIKE = 0.1  # images that are nearer look alike: JPEG at quality 50, half the size, 2% brighter
WIDTH = 64  # of the sketch of more features: that many random combinations of them
SAMPLE = 1 << 22  # numbers that medians are taken of
COARSE = (torch.float32, torch.bfloat16, torch.float16)  # what a row may have been rounded to
SIDE, CHANNELS = 8, 4  # frequencies in each direction of an image; most channels of an image
_Keys = dict[int, tuple[list[int], list[int]]]  # rows that are equal once rounded: fine, rounded


def sketches(*splits: Split) -> list[np.ndarray]:
    """Return the sketches (n×k) of the inputs of several splits, in common units."""
    examples = [split.first(1) for split in splits]
    shapes = {tuple(example.shape[1:]) for example in examples}
    if len(shapes) > 1:
        told = " and ".join(map(str, sorted(shapes)))
        raise InputError(f"samples have shapes {told}; tasks of one model must agree.")
    if all(map(is_text, examples)):
        return [_joined(split, _hashed) for split in splits]
    if is_image(shapes.pop()):
        found = [_joined(split, _frequencies) for split in splits]
        unit = math.sqrt(np.concatenate(found).var(axis=0).sum()) or 1.0
        return [rows / unit for rows in found]
    centre, scale, coarse = _units(splits)
    if len(scale) > WIDTH:
        generator = torch.Generator().manual_seed(0)
        mix = torch.randn(len(scale), WIDTH, generator=generator, dtype=torch.float64)
        mix *= scale[:, None] / math.sqrt(WIDTH)
    else:
        mix = scale.diag()
    keys: list[_Keys] = [{} for _ in coarse]
    place = 0
    found = []
    for split in splits:
        parts = []
        for inputs, _ in split.batches():
            rows = _flat(inputs)
            parts.append((rows - centre) @ mix)
            for dtype, one in zip(coarse, keys, strict=True):
                rounded = _is_rounded(rows, dtype).tolist()
                for i, key in enumerate(hash_rows(rows.to(dtype))):
                    one.setdefault(key, ([], []))[rounded[i]].append(place + i)
            place += len(rows)
        found.append(torch.cat(parts).numpy())
    every, ends = np.concatenate(found), np.cumsum([len(rows) for rows in found])[:-1]
    for fine, rounded in (pair for one in keys for pair in one.values()):
        if fine and rounded:
            every[rounded] = every[fine[-1]]
    return np.split(every, ends)


def count_shared(rows: np.ndarray, *others: np.ndarray, tolerance: float) -> int:
    """Return how many sketches have a neighbour in others that is nearer than the tolerance."""
    tree = cKDTree(np.unique(np.concatenate(others), axis=0))  # equal rows would make it slow
    return int(np.isfinite(tree.query(rows, distance_upper_bound=tolerance)[0]).sum())


def count_repeated(rows: np.ndarray) -> int:
    """Return how many sketches occur more than once among the rows."""
    counts = np.unique(rows.round(7) + 0.0, axis=0, return_counts=True)[1]
    return int(counts[counts > 1].sum())


def is_image(shape: tuple[int, ...]) -> bool:
    """Return True for the shape of an image: (channels, height, width)."""
    return len(shape) == 3 and shape[0] <= CHANNELS


def _units(splits: Sequence[Split]) -> tuple[Tensor, Tensor, list[torch.dtype]]:
    """Return features' medians and inverse spreads over √D, and to what some rows were rounded."""
    kept: list[Tensor] = []
    step, count, some = 1, 0, {dtype: [False, False] for dtype in COARSE}
    for split in splits:
        for inputs, _ in split.batches():
            check_size(rows := _flat(inputs), split.where)
            for dtype, seen in some.items():
                rounded = _is_rounded(rows, dtype)
                some[dtype] = [seen[0] or bool(rounded.any()), seen[1] or not rounded.all()]
            kept.append(rows[-count % step :: step])
            count += len(rows)
            if sum(map(len, kept)) * rows.shape[1] > SAMPLE:
                kept, step = [torch.cat(kept)[::2].clone()], 2 * step
    sample = torch.cat(kept)
    centre = sample.median(dim=0).values
    away = 1.4826 * (sample - centre).abs_()  # its median is the deviation of a normal feature
    spread = away.median(dim=0).values
    rare = torch.where(away > 0, away, torch.nan).nanmedian(dim=0).values  # mostly one value
    spread = torch.where(spread > 0, spread, rare.nan_to_num()).maximum(NARROW * centre.abs())
    scale = torch.where(spread > 0, len(centre) ** 0.5 * spread, 1.0).reciprocal()
    return centre, scale, [dtype for dtype, seen in some.items() if all(seen)]


def _is_rounded(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return which rows a coarser dtype holds exactly.

    Rows of integers are left out: few bits hold many of them, though nobody rounded them.
    """
    return (rows == rows.to(dtype)).all(1) & (rows != rows.round()).any(1)


def _joined(split: Split, sketch: Callable[[Tensor], Tensor]) -> np.ndarray:
    return torch.cat([sketch(inputs) for inputs, _ in split.batches()]).numpy()


def _hashed(inputs: Tensor) -> Tensor:
    """Return four numbers that are the same for equal texts alone."""
    parts = [
        [number >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)] for number in hash_rows(inputs)
    ]
    return torch.tensor(parts, dtype=torch.float64)


def _flat(inputs: Tensor) -> Tensor:
    return inputs.cpu().flatten(1).double()


def _frequencies(images: Tensor) -> Tensor:
    """Return the discrete cosine transform of each channel at 8×8 pixels."""
    small = functional.adaptive_avg_pool2d(images.cpu().double(), SIDE)
    return torch.from_numpy(scipy.fft.dctn(small.numpy(), axes=(2, 3), norm="ortho")).flatten(1)
