"""Features in other bases."""

import numpy as np
import pytest
import torch
from torch import nn

from helpers.arenas import arena_for, curve, separable
from immunis.attacks import ATTACKS
from immunis.attacks.search import search, space_of
from immunis.theory.feature_maps import unit_rows

F = torch.float64


@pytest.mark.parametrize("name", ["mlp", "knn", "kernel"])
def test_a_direction_that_drowns_the_others_does_not_blind(name):
    """Where one direction is thousands of times larger, standardising shows no other."""

    def data(seed):
        x, y = separable(300, seed)
        common = np.random.default_rng(seed).normal(size=(len(x), 1))
        return (x + 3e3 * common).astype(np.float32), y

    outcome = search(ATTACKS[name], arena_for(ATTACKS[name], data=data, budget=100))
    assert max(p.test for p in outcome.points) > 0.8
    if name != "kernel":  # which damps as little as it takes
        assert outcome.settings["basis"] == "white"


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
@pytest.mark.parametrize("share", [0.005, 0.03])
@pytest.mark.parametrize("name", ["ridge", "logistic", "mlp", "knn", "kernel"])
def test_rows_much_longer_than_others_do_not_blind(name, share, scale):
    """Where a few rows are longer by orders of magnitude, a common scale shows no other."""

    def data(seed):
        x, y = separable(300, seed)
        long = np.random.default_rng(seed).random(len(x)) < share
        return (x * np.where(long, 1e7, 1.0)[:, None] * scale).astype(np.float32), y

    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 3)).eval()
    nn.init.eye_(model[0].weight)  # features are the inputs
    arena = arena_for(ATTACKS[name], data=data, budget=100, model=model)
    outcome = search(ATTACKS[name], arena)
    assert max(p.test for p in outcome.points) > 0.8
    assert outcome.settings["basis"] == "unit" or share < 0.01  # none may be among those to fit on


def test_rows_of_zeros_have_no_length_to_bring_to_one():
    z = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3e-300, 4e-300], [-3e300, 4e300]], dtype=F)
    found = unit_rows(z)
    assert torch.allclose(
        found, torch.tensor([[0, 0], [0.6, 0.8], [0.6, 0.8], [-0.6, 0.8]]).double()
    )


def test_rows_are_of_one_length_after_whitening_too():
    features = arena_for(ATTACKS["mlp"]).features().in_basis("unit")
    size = features.z.norm(dim=1)
    assert torch.allclose(size, torch.full_like(size, features.dimension**0.5))


@pytest.mark.parametrize("name", ["ridge", "logistic", "mlp", "knn", "kernel"])
def test_constant_features_have_no_length_to_bring_to_one_and_read_nothing(name):
    arena = arena_for(ATTACKS[name], data=lambda seed: (np.ones((60, 3)), np.arange(60) % 2))
    assert "unit" in space_of(ATTACKS[name], arena)["basis"]
    assert max(p.test for p in search(ATTACKS[name], arena).points) == 0.5


def test_whitening_costs_something():
    arena = arena_for(ATTACKS["whiten"], budget=5)
    plain = curve(ATTACKS["standardise"], arena, {})[0].flops
    assert curve(ATTACKS["whiten"], arena, {"ridge": 0.0})[0].flops > plain
