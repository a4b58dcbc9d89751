"""Costs and checkpoints."""

import torch

from immunis.attacks.meter import checkpoints, count_flops


def test_checkpoints_end_with_the_budget():
    assert checkpoints(1) == [1]
    assert checkpoints(50) == [1, 2, 5, 10, 20, 50]


def test_a_product_costs_two_operations_for_each_number():
    product, flops = count_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 4))
    assert product.shape == (2, 4)
    assert flops == 2 * 2 * 3 * 4
