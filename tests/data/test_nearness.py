"""Changed copies lie suspiciously near to their originals; independent rows do not."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from immunis.data.copies import sketches
from immunis.data.nearness import BLOCK, CLOSE, grey, in_own_units, nearness
from immunis.data.split import Split


def found(rows, others, view=lambda rows: rows):
    splits = [Split((x, torch.zeros(len(x), dtype=torch.int64)), "rows") for x in (rows, others)]
    rows, others = map(view, sketches(*splits))
    return nearness(others, rows)[0]


def naive(rows, others):
    """Rows that are near, pair by pair."""
    near = 0
    for row in rows:
        across = np.linalg.norm(others - row, axis=1)
        beside = np.linalg.norm(others - others[across.argmin()], axis=1)
        beside[across.argmin()] = np.inf
        near += across.min() < CLOSE[1] * beside.min()
    return near


def test_it_counts_what_every_pair_of_rows_says():
    rng = np.random.default_rng(0)
    rows, others = rng.normal(size=(2 * BLOCK + 5, 3)), rng.normal(size=(90, 3))
    rows[:40] = others[:40] + 1e-2 * rng.normal(size=(40, 3))
    assert nearness(others, rows)[0]["near"] == naive(rows, others) > 30


@pytest.mark.parametrize("kind", ["normal", "few values", "repeated", "denser", "heavy"])
@pytest.mark.parametrize("width", [1, 2, 3, 6, 20])
def test_independent_rows_are_seldom_called_near(kind, width):
    def draw(rng, count):
        if kind == "few values":
            return rng.integers(0, 4, (count, width)).astype(float)
        if kind == "repeated":
            return rng.normal(size=(count // 2, width)).repeat(2, axis=0)
        if kind == "heavy":
            return rng.standard_t(2, size=(count, width))
        return rng.normal(size=(count, width))

    called = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        others = draw(rng, 1000 if kind == "denser" else 200)
        called += nearness(others, draw(rng, 100))[0]["suspicious"]
    assert called <= 1


def one_zero(x):
    x = x.clone()
    x[:, 3] = 0.0
    return x


CHANGES = {
    "5 digits": lambda x: torch.from_numpy(x.numpy().round(5)),
    "3 digits": lambda x: torch.from_numpy(x.numpy().round(3)),
    "noise": lambda x: x + 1e-5 * torch.randn(x.shape, dtype=x.dtype),
    "one feature zero": one_zero,
}


@pytest.mark.parametrize("width", [12, 20, 100])
@pytest.mark.parametrize("change", CHANGES)
def test_a_tenth_of_changed_copies_is_suspicious(change, width):
    x, other = torch.randn(2, 500, width, dtype=torch.float64)
    other[:50] = CHANGES[change](x[:50])
    assert found(other, x)["suspicious"]
    assert found(other[50:], x)["suspicious"] is False


def test_copies_in_other_units_are_suspicious_in_units_of_each_set():
    units = torch.logspace(-3, 3, 8, dtype=torch.float64)
    x, other = torch.randn(2, 500, 8, dtype=torch.float64) * units + 100 * units
    other[:100] = x[:100]
    scaled = (other - other.mean(0)) / other.std(0)
    assert found(scaled, x, in_own_units)["suspicious"]
    assert not found(scaled[100:], x, in_own_units)["suspicious"]


def pictures(count):
    small = torch.rand(count, 3, 6, 6)
    return functional.interpolate(small, size=(64, 64), mode="bicubic").clamp(0, 1)


LOOKS = {
    "moved by a pixel": lambda x: x.roll(1, 3),
    "grey": lambda x: x.mean(1, keepdim=True).expand(-1, 3, -1, -1).contiguous(),
    "brighter": lambda x: (1.1 * x).clamp(0, 1),
    "cut a little": lambda x: functional.interpolate(x[:, :, 2:62, 2:62], size=(64, 64)),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_tenth_of_changed_images_is_suspicious(look):
    x, other = pictures(200), pictures(200)
    other[:20] = LOOKS[look](x[:20])
    assert found(other, x, lambda rows: grey(rows, 3))["suspicious"]
    assert not found(other[20:], x, lambda rows: grey(rows, 3))["suspicious"]


def test_images_that_were_mirrored_are_not_found():
    x, other = pictures(200), pictures(200)
    other[:20] = x[:20].flip(3)
    assert not found(other, x, lambda rows: grey(rows, 3))["suspicious"]
