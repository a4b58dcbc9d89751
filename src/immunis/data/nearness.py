"""How near rows lie to those of another data set, against what is usual within that set.

A copy that was changed (rounded, noisy, rescaled, one feature set to zero; of an image: moved by a
pixel, grey, brighter) lies much nearer to its original than the original's neighbours do. So a row
is near if its distance a to the nearest row o of the set is below a share r of the distance b from
o to the next row of the set. Rows of the set itself, left out one by one, say how often that occurs
by chance. Four deviations more are suspicious. Sketches (``data.copies``) of tables of up to 64
features are compared as they are and in units of each set by itself, images by brightness alone.

Not found are copies in less than about one row in fifty, features in another order, and images that
were mirrored or cut by much. A set whose rows hang together by pairs with those of the other, such
as frames of the same films, looks suspicious though nothing was copied.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROWS, BLOCK = 300, 32  # rows that are compared at most, and at a time
CLOSE = (1e-3, 0.3)  # shares r: of copies that were rounded, and of those that were changed


def nearness(others: np.ndarray, *sets: np.ndarray) -> list[dict[str, Any]]:
    """Return, for each set, how many of up to 300 rows are near to others, and how many of chance.

    ``minimum`` and ``quantile`` (1%) are of the distances to the others, ``within`` the same among
    these.
    """
    every, own = torch.from_numpy(others), _some(others)
    inside, next_to = _neighbours(every[own], every, own)
    usual = [1 + int((inside < share * next_to).sum()) for share in CLOSE]
    found = []
    for rows in sets:
        across, beside = _neighbours(torch.from_numpy(rows)[_some(rows)], every)
        near = [int((across < share * beside).sum()) for share in CLOSE]
        chance = [count * len(across) / len(inside) for count in usual]
        most = [each + 4 * math.sqrt(2 * each) for each in chance]  # both counts vary
        worst = max(range(len(CLOSE)), key=lambda i: near[i] - most[i])
        found.append(
            {
                "rows": len(across),
                "near": near[worst],
                "by_chance": chance[worst],
                "suspicious": near[worst] > most[worst],
                **_ends(across),
                "within": _ends(inside),
            }
        )
    return found


def _ends(values: Tensor) -> dict[str, float]:
    return {"minimum": float(values.min()), "quantile": float(values.quantile(0.01))}


def _some(rows: np.ndarray) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).permutation(len(rows))[:ROWS])


def _neighbours(
    rows: Tensor, others: Tensor, places: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return each row's distance to the nearest other, and from that one to the next.

    ``places`` are those of the rows among the others, if they are of them: not compared.
    """
    found = []
    for part in torch.arange(len(rows)).split(BLOCK):
        left_out = [] if places is None else [places[part]]
        first, nearest = _apart(rows[part], others, *left_out).min(1)
        found.append((first, _apart(others[nearest], others, nearest, *left_out).amin(1)))
    first, second = (torch.cat(column) for column in zip(*found, strict=True))
    return first, second


def _apart(some: Tensor, others: Tensor, *left_out: Tensor) -> Tensor:
    found = torch.cdist(some, others, compute_mode="donot_use_mm_for_euclid_dist")
    for places in left_out:
        found[torch.arange(len(places)), places] = math.inf
    return found


def in_own_units(sketches: np.ndarray) -> np.ndarray:
    """Return the sketches of a set about their median, in units of the median distance from it."""
    away = sketches - np.median(sketches, axis=0)
    spread = np.median(np.abs(away), axis=0)
    spread = np.where(spread > 0, spread, np.abs(away).mean(axis=0))
    return away / np.where(spread > 0, spread, 1.0)


def grey(sketches: np.ndarray, channels: int) -> np.ndarray:
    """Return the sketches of images without colour, brightness and contrast."""
    mean = sketches.reshape(len(sketches), channels, -1).mean(1)[:, 1:]  # the first is brightness
    length = np.linalg.norm(mean, axis=1, keepdims=True)
    return mean / np.where(length > 0, length, 1.0)
