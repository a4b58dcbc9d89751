import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from helpers import reference
from immunis import InputError, NumericalError, Task
from immunis import gram as stream
from immunis.theory.gram import gram_of
from immunis.theory.probes import rho, rho_of_gram, ridge_probe

F = torch.float64


def test_ridge_probe_equals_the_normal_equations():
    z, y = torch.randn(50, 4, dtype=F) + 2, torch.randn(50, 2, dtype=F)
    weights, bias = ridge_probe(gram_of(z, y), 1e-12)
    ones = torch.cat([z, torch.ones(50, 1, dtype=F)], 1)
    expected = torch.linalg.lstsq(ones, y).solution
    torch.testing.assert_close(weights, expected[:-1])
    torch.testing.assert_close(bias, expected[-1])
    with pytest.raises(InputError, match="positive"):
        ridge_probe(gram_of(z, y), 0)


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
