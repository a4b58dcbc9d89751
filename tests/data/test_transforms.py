"""Augmentation and mixup follow their generator."""

import pytest
import torch

from immunis.data.transforms import augmented, coloured, mixed


def test_augmentation_keeps_shape_and_range_and_follows_the_generator():
    x = torch.rand(6, 3, 12, 12)
    a, b = (augmented(x, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(a, b)
    assert a.shape == x.shape
    assert a.min() >= -1e-5
    assert a.max() <= 1 + 1e-5
    assert not torch.equal(a, x)
    flat = torch.rand(6, 5)
    assert augmented(flat, torch.Generator()) is flat


def test_mixing_moves_a_row_and_its_target_alike_up_to_half_way():
    y = torch.eye(8, dtype=torch.float64)
    x = y.float() @ torch.rand(8, 12)  # linear in the target, so that both must agree
    a, targets = mixed(x.view(8, 3, 2, 2), y, torch.Generator().manual_seed(3))
    assert torch.allclose(a.view(8, 12), targets.float() @ x, atol=1e-6)
    assert torch.allclose(targets.sum(1), torch.ones(8).double())
    assert targets.diagonal().min() >= 0.5
    assert targets.diagonal().min() < 1
    again, _ = mixed(x.view(8, 3, 2, 2), y, torch.Generator().manual_seed(3))
    assert torch.equal(a, again)


@pytest.mark.parametrize("channels", [1, 3])
def test_colours_change_image_by_image_and_shapes_and_scale_stay(channels):
    images = 50 + 7 * torch.randn(64, channels, 8, 8)
    changed = coloured(images, torch.Generator().manual_seed(0))
    again = coloured(images, torch.Generator().manual_seed(0))
    assert torch.equal(changed, again)
    assert changed.shape == images.shape and changed.dtype == images.dtype
    moves = (changed.mean((1, 2, 3)) - images.mean((1, 2, 3))) / images.std((1, 2, 3))
    assert moves.abs().max() <= 0.41 and moves.std() > 0.1, "brightness, by the own deviation"
    spread = changed.std((1, 2, 3)) / images.std((1, 2, 3))
    assert 0.3 < spread.min() < 0.8 and 1.2 < spread.max() < 2.0, "contrast"
    for before, after in zip(images, changed, strict=True):  # what is where stays
        pairs = torch.stack([before.mean(0).flatten(), after.mean(0).flatten()])
        assert torch.corrcoef(pairs)[0, 1] > 0.999
