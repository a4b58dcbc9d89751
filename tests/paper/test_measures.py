"""Both condition numbers of an extractor, and its attackers."""

import numpy as np
import pytest
import torch

from immunis import Task, gram, relative_immunization_ratio
from immunis.attacks.contract import Arena, Data, Samples
from immunis.paper.measures import Pair, attack
from immunis.theory.gram import gram_of


def test_honest_ratios_equal_the_library_s_and_released_ones_move_with_the_scale():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 50, 6)) * np.logspace(0, 2, 6)
    tasks = [Task((part, np.arange(50) % 2), name=n) for part, n in ((x, "p"), (y, "h"))]
    theta = torch.from_numpy(rng.normal(size=(6, 6)))
    pair = Pair(*map(gram, tasks))
    found, expected = pair.ratios(theta), relative_immunization_ratio(theta, *tasks)
    assert found["honest"]["rir"] == pytest.approx(expected.value)
    assert found["honest"]["harmful"] == pytest.approx(expected.harmful)
    assert found["released"]["rir"] == pytest.approx(expected.value, rel=1e-6)  # full rank
    flat = x.copy()
    flat[:, 5] = flat[:, 4]  # now one direction is empty
    pair = Pair(gram_of(torch.from_numpy(flat)), pair.harmful.gram)
    one, ten = pair.ratios(theta), pair.ratios(10 * theta)
    assert ten["honest"]["primary"] == pytest.approx(one["honest"]["primary"], rel=1e-6)
    assert ten["released"]["primary"] == pytest.approx(100 * one["released"]["primary"], rel=0.05)
    assert pair.primary.spectrum.rank == 5


def test_one_strange_row_does_not_mislead_the_closed_form_attacker():
    """A value that only one row has: an unpenalised probe is far off there, and best elsewhere."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 8))
    x[:, 7] = 0
    y = x[:, :7] @ rng.normal(size=7)
    x[:500, 7] = 1e-3 * rng.normal(size=500)
    theta = torch.diag(torch.logspace(0, -4, 8, dtype=torch.float64))
    for seed in range(3):
        held = Arena(None, "regression", 1, Data(x[:500], y[:500, None]), None, seed=seed).rows[1]
        train = x[:500].copy()
        train[held[0], 7] = 1e6
        samples = Samples("regression", 1, Data(train, y[:500, None]), Data(x[500:], y[500:, None]))
        found = attack(theta, samples, 5, seed)
        assert found["ridge"]["curve"][-1]["test"] > 0.99, seed
