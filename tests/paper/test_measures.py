"""Both condition numbers of a layer, what rounding makes of them, and its attackers."""

import numpy as np
import pytest
import torch

from immunis import Task, relative_immunization_ratio
from immunis.attacks.arrays import Data, Samples
from immunis.attacks.contract import Arena
from immunis.core.errors import NumericalError
from immunis.paper.measures import Inputs, Pair, attack, linear, ratios, shaken


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(x) for x in rng.normal(size=(2, 50, 6)) * np.logspace(0, 2, 6)]


def weights(seed=1):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(6, 6)))


def test_honest_ratios_equal_the_library_s_and_released_ones_move_with_the_scale():
    x, y = inputs()
    tasks = [Task((part, np.arange(50) % 2), name=n) for part, n in ((x, "p"), (y, "h"))]
    theta, pair = weights(), Pair(x, y)
    found = ratios(pair.kappas(), pair.kappas(linear(theta.T)))
    expected = relative_immunization_ratio(theta, *tasks)
    assert found["honest"]["rir"] == pytest.approx(expected.value)
    assert found["honest"]["harmful"] == pytest.approx(expected.harmful)
    assert found["released"]["rir"] == pytest.approx(expected.value, rel=1e-4)  # full rank
    flat = x.clone()
    flat[:, 5] = flat[:, 4]  # now one direction is empty
    pair = Pair(flat, y)
    one, ten = (pair.kappas(linear(scale * theta.T)) for scale in (1, 10))
    assert ten["honest"] == pytest.approx(one["honest"], rel=1e-6)
    assert ten["released"][0] == pytest.approx(100 * one["released"][0], rel=0.05)
    assert pair.primary.rank == 5


def test_a_bias_is_a_direction_of_its_own():
    x, y = inputs()
    x[:, 5] = x[:, 4]
    layer = linear(weights(), torch.ones(6))
    pair = Pair(x, y)
    assert (pair.primary.rank, pair.primary.affine_rank) == (5, 6)
    sigma = torch.linalg.svdvals(layer(x)) ** 2
    assert pair.kappas(layer)["honest"][0] == pytest.approx(float(sigma[0] / sigma[5]), rel=1e-9)
    x[:, 5] = -0.4  # the constant is among the inputs already
    assert Pair(x, y).primary.affine_rank == Pair(x, y).primary.rank == 6


def test_a_released_figure_that_rounding_decides_shows_it():
    """One empty direction: its eigenvalue is rounding noise of either sign."""
    x, y = inputs()
    x[:, 5] = x[:, 4]
    layer = linear(weights() / 100)
    found = Pair(x, y).kappas(layer, 20)
    draws, steady = zip(*found["rounding"], strict=True)
    assert len(draws) == 21 and max(draws) / min(draws) > 1.5
    assert max(steady) / min(steady) < 1 + 1e-6
    assert found["released"] == [np.median(draws), np.median(steady)]


def test_a_released_figure_of_the_inputs_shows_it_too():
    x, y = inputs()
    x[:, 5] = x[:, 4]
    moved, steady = Inputs(x).floor(1.0, 20), Inputs(y).floor(1.0, 20)
    assert moved["high"] / moved["low"] > 1.5
    assert moved["low"] <= moved["median"] <= moved["high"]
    assert steady["high"] / steady["low"] < 1 + 1e-6
    assert steady["median"] == pytest.approx(Inputs(y).released())
    assert Inputs(y).floor(10.0, 2)["median"] == pytest.approx(Inputs(10 * y).released(), rel=1e-6)


def test_errors_of_the_size_of_rounding_have_that_size():
    values = torch.rand(1000, dtype=torch.float64)
    moved = (shaken(values, 3) / values - 1).abs()
    assert 0 < float(moved.mean()) < 2e-15
    assert torch.equal(shaken(values, 3), shaken(values, 3))


def test_a_layer_without_a_condition_number_is_said():
    pair = Pair(*inputs())
    with pytest.raises(NumericalError, match="no longer finite"):
        pair.kappas(linear(float("nan") * weights()))
    with pytest.raises(NumericalError, match="singular"):
        pair.primary.honest(linear(0 * weights()))


def test_one_strange_row_does_not_mislead_the_closed_form_attacker():
    """A value that only one row has: an unpenalised probe is far off there, and best elsewhere."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 8))
    x[:, 7] = 0
    y = x[:, :7] @ rng.normal(size=7)
    x[:500, 7] = 1e-3 * rng.normal(size=500)
    layer = linear(torch.diag(torch.logspace(0, -4, 8, dtype=torch.float64)))
    for seed in range(3):
        held = Arena(None, "regression", 1, Data(x[:500], y[:500, None]), None, seed=seed).rows[1]
        train = x[:500].copy()
        train[held[0], 7] = 1e6
        samples = Samples("regression", 1, Data(train, y[:500, None]), Data(x[500:], y[500:, None]))
        found = attack(layer, samples, 5, seed)
        assert found["ridge"]["curve"][-1]["test"] > 0.99, seed
