"""Probe features averaged over an image, its mirror image and small shifts of it."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from immunis.attacks.arrays import read_features
from immunis.attacks.contract import Arena, Attack, Made, NotApplicableError, Settings

SHIFTS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))  # in sixteenths of an image: down, right


def shifted(images: Tensor, shift: tuple[int, int]) -> Tensor:
    """Return images rolled by so many sixteenths of their size, at least one pixel."""
    sizes = [max(1, side // 16) for side in images.shape[2:]]
    return images.roll([n * size for n, size in zip(shift, sizes, strict=True)], (2, 3))


VIEWS: list[Callable[[Tensor], Tensor]]
VIEWS = [lambda images: images.flip(3), *(partial(shifted, shift=shift) for shift in SHIFTS)]


def features(arena: Arena, settings: Settings) -> Made:
    """Return the mean features of all views, of training and test rows alike."""
    if arena.train.inputs.ndim != 4:
        raise NotApplicableError("the inputs are not images")

    def mean(inputs: np.ndarray) -> np.ndarray:
        seen = (read_features(arena.cut, inputs, view) for view in VIEWS)
        return (sum(seen, torch.zeros(())) / len(VIEWS)).numpy()

    extra = (len(VIEWS) - 1) * len(arena.rows[0]) * arena.extraction_flops
    return Made({"": (mean(arena.train.inputs), mean(arena.test.inputs))}, flops=extra)


ATTACK = Attack(features=features, place=15)
