"""Augmentation and mixup follow their generator."""

import torch

from immunis.data.transforms import augmented, mixed


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
