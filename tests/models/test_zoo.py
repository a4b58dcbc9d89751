"""Untrained controls share nothing but the architecture."""

import torch
from torch import nn

from helpers.networks import Residual, Tokens
from immunis.models.find_cut import cut
from immunis.models.zoo import reinitialise, untrained


def test_custom_norms_start_at_one():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((4,), 3.0))
            self.bias = nn.Parameter(torch.full((4,), 3.0))

        def forward(self, x):
            return x * self.weight + self.bias

    fresh = untrained(cut(nn.Sequential(nn.Linear(4, 4), Norm()).eval(), torch.randn(2, 4)), 0)
    assert torch.equal(fresh.model[1].weight, torch.ones(4))
    assert torch.equal(fresh.model[1].bias, torch.zeros(4))


def test_the_untrained_control_shares_nothing_but_the_architecture():
    for model, x in (
        (Residual().eval(), torch.randn(2, 1, 8, 8)),
        (Tokens().eval(), torch.ones(2, 3, 6)),
    ):
        source = cut(model, x)
        fresh = untrained(source, 1)
        again = untrained(source, 1)
        for (name, old), new, same in zip(
            model.named_parameters(),
            fresh.model.parameters(),
            again.model.parameters(),
            strict=True,
        ):
            assert torch.equal(new, same), name
            if "norm" not in name:
                assert not torch.equal(new, old), name
        assert not fresh.model.training


def test_reinitialising_leaves_the_global_generator_alone():
    layer = nn.Linear(2, 2)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    reinitialise(layer, 0)
    assert torch.equal(torch.rand(1), expected)
