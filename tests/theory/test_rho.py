import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from helpers import reference
from immunis import InputError, NumericalError, Task
from immunis import gram as stream
from immunis.theory.feature_maps import even, unit_rows
from immunis.theory.rho import nu, recalled, rho, rho_of_gram

F = torch.float64


def labelled(n=40, d=4, c=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, dtype=F, generator=generator)
    y = torch.nn.functional.one_hot(torch.arange(n) % c).to(F)
    z[:, 0] += 2 * y[:, 0]
    return z, y


@pytest.mark.parametrize(("ridge", "floor"), [(1e-3, 0.0), (0.5, 0.1), (0.0, 0.01)])
def test_rho_equals_the_naive_one(ridge, floor):
    z, y = labelled()
    z.requires_grad_()
    naive = reference.rho(z, y, ridge, floor)
    torch.testing.assert_close(rho(z, y, ridge, floor), naive)
    (expected,) = torch.autograd.grad(naive, z)
    (found,) = torch.autograd.grad(rho(z, y, ridge, floor), z)
    torch.testing.assert_close(found, expected)
    assert gradcheck(lambda f: rho(f, y, ridge, floor), (z,))


def test_rho_is_invariant_to_invertible_maps_without_ridge():
    z, y = labelled()
    plain = float(rho(z, y, 0.0))
    for seed in range(5):
        t = torch.randn(4, 4, dtype=F, generator=torch.Generator().manual_seed(seed))
        assert float(rho(z @ t + 7, y, 0.0)) == pytest.approx(plain, abs=1e-9)


@given(st.integers(5, 40), st.integers(1, 8), st.floats(1e-6, 10), st.floats(-8, 8))
@settings(max_examples=50, deadline=None)
def test_rho_lies_between_zero_and_one_and_ignores_scale(n, d, ridge, exponent):
    z, y = labelled(n, d)
    value = float(rho(z, y, ridge))
    assert -1e-12 <= value <= 1 + 1e-12
    assert float(rho(z * 10**exponent, y, ridge)) == pytest.approx(value, rel=1e-6)


def test_rho_of_rank_deficient_features():
    z, y = labelled()
    doubled = torch.cat([z, z], 1)
    assert float(rho(doubled, y, 0.0)) == pytest.approx(float(rho(z, y, 0.0)))
    few, labels = labelled(n=6, d=20)
    assert float(rho(few, labels, 0.0)) == pytest.approx(1)
    constant = torch.ones(10, 2, dtype=F)
    assert float(rho(constant, labelled(10)[1], 0.1, 1e-3)) == 0


def said_by(z, y, ridge):
    """What a ridge probe of z answers for its own rows, about the mean."""
    z, y = z - z.mean(0), y - y.mean(0)
    zz = z.T @ z
    damped = zz + ridge * zz.trace() / len(zz) * torch.eye(len(zz), dtype=z.dtype)
    return z @ torch.linalg.inv(damped) @ (z.T @ y)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_what_features_recall_counts_as_much_as_the_targets_themselves(scale):
    (before, y), now = labelled(), labelled(seed=3)[0]
    both = recalled(scale * before, scale * y, 0.1)
    assert torch.equal(both[:, :3], scale * y) and both.dtype == F
    said = said_by(before, y, 0.1)
    expected = said * (y - y.mean(0)).norm() / said.norm()
    torch.testing.assert_close(both[:, 3:] / scale, expected)
    for read in (lambda t: rho(now, t), lambda t: nu(unit_rows(now), t)):
        mean = (read(y) + read(said)) / 2
        torch.testing.assert_close(read(both / scale), mean)


def test_features_that_say_nothing_recall_nothing():
    z, y = labelled()
    assert not recalled(torch.ones_like(z), y)[:, 3:].any()
    single = recalled(z[:, :1].float(), y)
    assert torch.linalg.matrix_rank(single[:, 3:]) == 1
    with pytest.raises(InputError, match="labels are constant"):
        recalled(z, torch.ones_like(y))
    with pytest.raises(NumericalError, match="NaN and infinities"):
        recalled(z * torch.nan, y)


def test_rho_of_gram_equals_rho_of_features():
    z, y = labelled()
    task = Task((z, y.argmax(1)))
    assert rho_of_gram(stream(task), 1e-3) == pytest.approx(float(rho(z, y, 1e-3)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ridge": -1.0}, "at least 0"),
        ({"floor": -1.0}, "at least 0"),
        ({"targets": torch.ones(40, 3)}, "constant"),
        ({"targets": torch.ones(40)}, "Encode class labels"),
        ({"features": torch.ones(39, 4)}, "features"),
    ],
)
def test_rho_refuses_what_it_cannot_use(change, says):
    z, y = labelled()
    with pytest.raises(InputError, match=says):
        rho(**{"features": z, "targets": y, **change})


def test_a_ridge_lost_in_rounding_gives_the_limit_not_noise():
    z, y = labelled()
    copies = torch.cat([z, z / 3, z * 7], 1)
    for ridge in (0.0, 1e-20, 1e-16):
        assert float(rho(copies, y, ridge)) == pytest.approx(float(rho(z, y, 0.0)), abs=1e-9)


def test_rho_of_nan_features_is_a_numerical_error():
    z, y = labelled()
    z[3, 1] = float("nan")
    with pytest.raises(NumericalError, match="NaN"):
        rho(z, y)


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
def test_nu_is_what_a_loop_over_the_rows_finds(sharpness):
    z = torch.randn(9, 4, dtype=torch.float64, generator=draws())
    y = torch.randn(9, 3, dtype=torch.float64, generator=draws(1))
    found = by_loop(z, y, sharpness)
    assert float(nu(z, y, [sharpness])) == pytest.approx(found, abs=1e-12)
    both = (found + by_loop(z, y, 2.0)) / 2
    assert float(nu(z, y, [sharpness, 2.0])) == pytest.approx(both, abs=1e-12)


def test_nu_is_one_where_classes_lie_apart_and_less_than_nothing_where_all_rows_are_alike():
    labels = torch.arange(40) % 2
    apart = torch.stack([2.0 * labels - 1, 0.01 * torch.randn(40, generator=draws())], 1)
    assert float(nu(math.sqrt(2) * apart, one_hot(labels))) == pytest.approx(1, abs=1e-3)
    for z in (torch.ones(40, 3), torch.zeros(40, 3), torch.zeros(40, 0)):
        assert float(nu(z, one_hot(labels))) == pytest.approx(-1 / 39)


def test_nu_is_less_than_nothing_where_neighbours_are_made_to_differ():
    labels = torch.arange(40) % 2
    pairs = even(torch.randn(20, 8, generator=draws(6))).repeat_interleave(2, 0)  # one of each
    assert float(nu(pairs, one_hot(labels), [20.0])) < -0.5


def test_labels_at_random_are_not_explained_however_many_features_there_are():
    z = torch.randn(300, 250, generator=draws(2))
    labels = torch.randint(2, (300,), generator=draws(3))
    assert rho(z, one_hot(labels)) > 0.7
    assert abs(nu(even(z), one_hot(labels))) < 0.05


def test_the_gradient_of_nu_is_right():
    z = torch.randn(8, 3, dtype=torch.float64, generator=draws(5)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: nu(z, one_hot(torch.arange(8) % 2)), z)


@pytest.mark.parametrize(
    ("z", "y", "words"),
    [
        (torch.ones(1, 2), torch.ones(1, 2), "n at least 2"),
        (torch.ones(3, 2), torch.ones(3), "targets .n, C."),
        (torch.ones(3, 2), torch.ones(4, 2), "got .3, 2. and .4, 2."),
        (torch.ones(3), torch.ones(3, 2), "features .n, D."),
        (torch.ones(3, 2, 2), torch.ones(3, 2), "features .n, D."),
        (torch.randn(3, 2), torch.ones(3, 2), "labels are constant"),
    ],
)
def test_nu_refuses_what_cannot_be_read(z, y, words):
    with pytest.raises(InputError, match=words):
        nu(z, y)


def test_nu_refuses_bad_numbers_and_no_sharpness():
    z, y = torch.randn(4, 2, generator=draws(7)), one_hot(torch.arange(4) % 2)
    for bad in (math.nan, math.inf):
        with pytest.raises(NumericalError, match="NaN"):
            nu(z * bad, y)
        with pytest.raises(NumericalError, match="NaN"):
            nu(z, y * bad)
    for sharpness in ([], [0.0], [5.0, math.nan]):
        with pytest.raises(InputError, match="sharpness"):
            nu(z, y, sharpness)
