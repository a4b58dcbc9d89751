"""Attackers who know the defence."""

import numpy as np
import pytest
import torch
from torch import nn

from helpers.arenas import arena_for
from immunis.attacks import ATTACKS
from immunis.attacks.contract import NotApplicableError
from immunis.attacks.search import search

F = torch.float64


def drowned(n=400, seed=0):
    """Labels in the second of eight inputs."""
    x = np.random.default_rng(seed).normal(size=(n, 8)).astype(np.float32)
    return x, (x[:, 1] > 0).astype(int)


def test_what_a_float32_pass_rounds_away_a_float64_pass_reads():
    torch.manual_seed(0)
    turn = torch.linalg.qr(torch.randn(8, 8))[0]
    first = nn.Linear(8, 8, bias=False)
    first.weight.data = turn * torch.tensor([1e9, *[1.0] * 7])  # one direction drowns the others
    model = nn.Sequential(first, nn.Linear(8, 3)).eval()
    scores = {
        name: search(ATTACKS[name], arena_for(ATTACKS[name], model=model, data=drowned))
        for name in ("ridge", "whiten", "float64")
    }
    finals = {name: max(p.test for p in outcome.points) for name, outcome in scores.items()}
    assert max(finals["ridge"], finals["whiten"]) < 0.7
    assert finals["float64"] > 0.9


def test_a_network_that_refuses_float64_is_no_case_for_it():
    class Fixed(nn.Module):
        def forward(self, x):
            return x.float() @ torch.eye(6)

    model = nn.Sequential(Fixed(), nn.Linear(6, 3)).eval()
    arena = arena_for(ATTACKS["float64"], model=model)
    with pytest.raises(NotApplicableError, match="does not run in float64"):
        search(ATTACKS["float64"], arena)
