"""Copies are found at a stated tolerance, and what only resembles a row is not one."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from immunis.core.errors import InputError
from immunis.data import copies
from immunis.data.copies import ALIKE, COPY, count_shared, sketches
from immunis.data.split import Split


def split(x):
    return Split((x, torch.zeros(len(x), dtype=torch.int64)), "rows")


def shared(one, other, tolerance=COPY):
    return count_shared(*sketches(split(one), split(other)), tolerance=tolerance)


def naive(one, other, tolerance):
    """Every pair: the root mean square, over features, of differences in units of each feature."""
    rows = torch.cat([one, other]).double()
    unit = 1.4826 * (rows - rows.median(0).values).abs().median(0).values
    apart = (one[:, None] - other[None]).double() / unit
    return int((apart.square().mean(2).sqrt().min(1).values < tolerance).sum())


def moved(x):
    x = x.clone()
    x[:, 0] += 1e-9
    return x


CHANGES = {
    "none": lambda x: x,
    "float32": lambda x: x.float().double(),
    "bfloat16": lambda x: x.bfloat16(),
    "float16": lambda x: x.half().double(),
    "scaled": lambda x: x * (1 + 1e-12),
    "one feature": moved,
    "shuffled": lambda x: x.flip(0),
}


@pytest.mark.parametrize("width", [3, 64, 512])
@pytest.mark.parametrize("change", CHANGES)
def test_copies_of_numbers_are_found(change, width):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, width, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(-3, 3, width) + torch.arange(width) % 2  # in unlike units
    x[:50, 0] = 0.0
    one, other = x[:150], CHANGES[change](x[50:])
    assert shared(one, other) == 100
    assert shared(x[:50], other) == 0


def test_it_counts_what_every_pair_of_rows_says():
    generator = torch.Generator().manual_seed(1)
    one, other = torch.randn(2, 120, 3, generator=generator, dtype=torch.float64)
    for tolerance in (0.1, 0.2, 0.3):
        assert shared(one, other, tolerance) == naive(one, other, tolerance) > 0


def test_rows_that_differ_in_a_small_feature_alone_are_no_copies():
    x = torch.stack([torch.full((5,), 1e6), 1e-3 * torch.arange(5)], dim=1)
    assert shared(x[:2], x[2:]) == 0
    assert shared(x[:3], x[2:]) == 1


OUTLIER = torch.full((1, 20), 1e8, dtype=torch.float64)
UNLIKE = {
    "offset": lambda x: x + 1e7,
    "timestamps": lambda x: 1.7e9 + 100 * x,
    "seconds": lambda x: (1.7e9 + 1e4 * x).round(),
    "outlier": lambda x: torch.cat([x, OUTLIER[:, : x.shape[1]] * x[:1]]),
    "mostly zero": lambda x: torch.where(x > 1.2, x, 0.0)[(x > 1.2).any(1)],
    "float32": lambda x: x.float() + 100,
    "bfloat16": lambda x: x.bfloat16(),
}


@pytest.mark.parametrize("width", [3, 20, 100])
@pytest.mark.parametrize("kind", UNLIKE)
def test_rows_that_nobody_copied_are_not_called_copies(kind, width):
    generator = torch.Generator().manual_seed(2)
    one, other = torch.randn(2, 300, width, generator=generator, dtype=torch.float64)
    if kind == "outlier":
        one, other = UNLIKE[kind](one[:, :20]), other[:, :20]
    else:
        one, other = UNLIKE[kind](one), UNLIKE[kind](other)
    if kind == "mostly zero" and width == 3:
        one, other = one[(one > 0).sum(1) > 1], other[(other > 0).sum(1) > 1]
    assert shared(one, other) == shared(other, one) == 0
    both = torch.cat([other, one[:7].to(other.dtype)])
    assert shared(one, both) == 7


def test_one_rounded_row_among_others_is_told():
    generator = torch.Generator().manual_seed(3)
    one, other = torch.randn(2, 300, 3, generator=generator, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rows = torch.cat([one, other[:1].to(dtype).double()])
        assert shared(rows, other) == shared(other, rows) == 1


def pictures(n, seed):
    """Smooth coloured pictures, each unlike the others."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (n, 6, 6, 3), dtype=np.uint8)
    return [Image.fromarray(one).resize((64, 64), Image.Resampling.BICUBIC) for one in small]


def again(image, quality=50):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def as_tensor(images):
    return torch.stack([torch.from_numpy(np.array(i)).permute(2, 0, 1) for i in images]).float()


LOOKS = {
    "re-encoded": again,
    "half the size": lambda i: i.resize((32, 32)).resize((64, 64), Image.Resampling.BICUBIC),
    "brighter": lambda i: i.point(lambda value: min(255, round(value * 1.02))),
}


@pytest.mark.parametrize("look", LOOKS)
def test_images_that_look_alike_are_found(look):
    images = pictures(60, 0)
    own, others = as_tensor(images), as_tensor([LOOKS[look](i) for i in images[:40]])
    assert shared(own, others, ALIKE) == 40
    assert shared(own, others) == 0
    assert shared(own, own[:7]) == 7
    assert shared(own, as_tensor(pictures(60, 1)), ALIKE) == 0
    assert shared(own / 255 - 0.5, others / 255 - 0.5, ALIKE) == 40


@pytest.fixture
def searched(monkeypatch):
    """The shapes (n, k) of the sketches that are searched."""
    shapes, tree = [], copies.cKDTree
    monkeypatch.setattr(copies, "cKDTree", lambda x: shapes.append(x.shape) or tree(x))
    return shapes


def test_equal_rows_by_the_thousand_are_compared_once(searched):
    x = torch.zeros(20_000, 8)
    assert shared(x, x) == 20_000
    assert searched == [(1, 8)]


def test_rows_of_other_shapes_cannot_be_compared():
    with pytest.raises(InputError, match="shape"):
        shared(torch.zeros(3, 2), torch.zeros(3, 4))


@pytest.mark.slow
def test_fifty_thousand_rows_of_512_features_are_compared_by_their_sketches(searched):
    x = torch.randn(100_000, 512, generator=torch.Generator().manual_seed(0))
    assert shared(x[:50_000], x[49_990:]) == 10
    assert searched == [(50_010, copies.WIDTH)]
