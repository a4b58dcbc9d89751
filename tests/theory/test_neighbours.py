"""ν: what neighbours read, against a loop, at its limits, and its gradient."""

import math

import pytest
import torch

from immunis import InputError, NumericalError
from immunis.theory.feature_maps import even
from immunis.theory.neighbours import nu
from immunis.theory.rho import rho


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def one_hot(labels, classes=2):
    return torch.nn.functional.one_hot(labels, classes).double()


def by_loop(z, y, sharpness):
    """ν row by row."""
    y = y - y.mean(0)
    total = 0.0
    for i in range(len(z)):
        weights = [
            0.0 if j == i else math.exp(sharpness * float(z[i] @ z[j]) / z.shape[1])
            for j in range(len(z))
        ]
        answer = sum(w * row for w, row in zip(weights, y, strict=True)) / sum(weights)
        total += float(answer @ y[i])
    return total / float(y.square().sum())


@pytest.mark.parametrize("sharpness", [1e-9, 3.0, 10.0])
def test_it_is_what_a_loop_over_the_rows_finds(sharpness):
    z = torch.randn(9, 4, dtype=torch.float64, generator=draws())
    y = torch.randn(9, 3, dtype=torch.float64, generator=draws(1))
    found = by_loop(z, y, sharpness)
    assert float(nu(z, y, [sharpness])) == pytest.approx(found, abs=1e-12)
    both = (found + by_loop(z, y, 2.0)) / 2
    assert float(nu(z, y, [sharpness, 2.0])) == pytest.approx(both, abs=1e-12)


def test_one_where_classes_lie_apart_and_less_than_nothing_where_all_rows_are_alike():
    labels = torch.arange(40) % 2
    apart = torch.stack([2.0 * labels - 1, 0.01 * torch.randn(40, generator=draws())], 1)
    assert float(nu(math.sqrt(2) * apart, one_hot(labels))) == pytest.approx(1, abs=1e-3)
    for z in (torch.ones(40, 3), torch.zeros(40, 3), torch.zeros(40, 0)):
        assert float(nu(z, one_hot(labels))) == pytest.approx(-1 / 39)


def test_less_than_nothing_where_neighbours_are_made_to_differ():
    labels = torch.arange(40) % 2
    pairs = even(torch.randn(20, 8, generator=draws(6))).repeat_interleave(2, 0)  # one of each
    assert float(nu(pairs, one_hot(labels), [20.0])) < -0.5


def test_labels_at_random_are_not_explained_however_many_features_there_are():
    z = torch.randn(300, 250, generator=draws(2))
    labels = torch.randint(2, (300,), generator=draws(3))
    assert rho(z, one_hot(labels)) > 0.7
    assert abs(nu(even(z), one_hot(labels))) < 0.05


def test_its_gradient_is_right():
    z = torch.randn(8, 3, dtype=torch.float64, generator=draws(5)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: nu(z, one_hot(torch.arange(8) % 2)), z)


@pytest.mark.parametrize(
    ("z", "y", "words"),
    [
        (torch.ones(1, 2), torch.ones(1, 2), "two rows or more"),
        (torch.ones(3, 2), torch.ones(3), "targets .n, C."),
        (torch.ones(3, 2), torch.ones(4, 2), "got .3, 2. and .4, 2."),
        (torch.ones(3), torch.ones(3, 2), "features .n, D."),
        (torch.ones(3, 2, 2), torch.ones(3, 2), "features .n, D."),
        (torch.randn(3, 2), torch.ones(3, 2), "labels are constant"),
    ],
)
def test_what_cannot_be_read_is_refused(z, y, words):
    with pytest.raises(InputError, match=words):
        nu(z, y)


def test_bad_numbers_and_no_sharpness_are_refused():
    z, y = torch.randn(4, 2, generator=draws(7)), one_hot(torch.arange(4) % 2)
    for bad in (math.nan, math.inf):
        with pytest.raises(NumericalError, match="NaN"):
            nu(z * bad, y)
        with pytest.raises(NumericalError, match="NaN"):
            nu(z, y * bad)
    for sharpness in ([], [0.0], [5.0, math.nan]):
        with pytest.raises(InputError, match="sharpness"):
            nu(z, y, sharpness)
