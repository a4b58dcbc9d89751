"""How the positions of what a stage gives are read: the coarse grid."""

import pytest
import torch
from torch import nn

from helpers.networks import Residual, mlp
from immunis.models.find_cut import cut
from immunis.models.positions import GRID, on_grid
from immunis.models.with_features import WithFeatures


@pytest.mark.parametrize("size", [8, 5, 1])
def test_maps_are_averaged_over_four_cells(size):
    x = torch.randn(3, 1, size, size)
    part = cut(Residual().eval(), x, 3)
    found, maps = part.features(x, "layer1" + GRID), part.features(x, "layer1:maps")
    maps = maps.reshape(3, size, size, 6).movedim(-1, 1)
    side = min(size, 2)
    assert found.shape == (3, 6 * side * side)
    torch.testing.assert_close(found, nn.functional.adaptive_avg_pool2d(maps, side).flatten(1))


def test_a_grid_is_cut_at_borders_within_the_maps():
    maps = torch.randn(3, 5, 4, 6)
    found = on_grid(maps, borders=(0.5, 0.99))  # behind the third row and the third column
    assert found.shape == (3, 24)
    torch.testing.assert_close(found[:, :6], maps[:, :3, :3].mean((1, 2)))
    torch.testing.assert_close(found[:, -6:], maps[:, 3:, 3:].mean((1, 2)))
    assert on_grid(maps[:, :1, :1], borders=(0.0, 0.9)).shape == (3, 6)
    x, part = torch.randn(4, 1, 8, 8), cut(Residual().eval(), torch.randn(2, 1, 8, 8), 3)
    student = WithFeatures(part, ["layer1" + GRID])
    even = student(x)[1]["layer1" + GRID]
    torch.testing.assert_close(even, part.features(x, "layer1" + GRID))
    student.borders = (0.0, 0.0)
    assert not torch.allclose(student(x)[1]["layer1" + GRID], even)


def test_patches_are_a_square_and_tokens_before_them_are_kept():
    tokens = torch.randn(4, 17, 6)
    found = on_grid(tokens)
    assert torch.equal(found[:, :6], tokens[:, 0])  # the class token
    square = tokens[:, 1:].reshape(4, 2, 2, 2, 2, 6)  # rows of cells, rows within, ...
    means = square.mean((2, 4)).movedim(-1, 1).flatten(1)
    torch.testing.assert_close(found[:, 6:], means)


def test_other_tokens_give_their_mean_and_the_first_and_padding_does_not_count():
    tokens = torch.randn(4, 12, 6)  # 3×3 patches and three others would be a square: masks decide
    mask = torch.arange(12).expand(4, -1) < torch.tensor([12, 5, 3, 1])[:, None]
    found = on_grid(tokens, mask)
    assert found.shape == (4, 12)
    for row, count in enumerate((12, 5, 3, 1)):
        torch.testing.assert_close(found[row, :6], tokens[row, :count].mean(0))
    torch.testing.assert_close(found[:, 6:], tokens[:, 0])
    longer = torch.cat([tokens, torch.randn(4, 5, 6)], 1)
    wide = torch.cat([mask, torch.zeros(4, 5, dtype=torch.bool)], 1)
    torch.testing.assert_close(on_grid(longer, wide), found)


def test_vectors_stay_as_they_are():
    x = torch.randn(3, 4)
    part = cut(mlp(), x, 3)
    stage = part.stages[-1]
    assert torch.equal(part.features(x, stage + GRID), part.features(x, stage))
