"""Random features and rows of one length: their scale, their gradients, and what ρ reads there."""

import pytest
import torch

from immunis import NumericalError
from immunis.theory.feature_maps import even, fourier, white
from immunis.theory.rho import rho


def test_products_of_random_features_tend_to_the_kernel():
    z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lifted = fourier(z, 200_000, 0.3, torch.Generator().manual_seed(1))
    kernel = torch.exp(-0.3 * torch.cdist(z, z).square())
    assert torch.allclose(2 * lifted @ lifted.T / 200_000, kernel, atol=0.01)


def test_draws_are_those_of_the_generator_on_any_dtype():
    z = torch.randn(5, 3)
    one, two = (fourier(z.to(t), 7, 0.5, torch.Generator().manual_seed(2)) for t in
                (torch.float32, torch.float64))  # fmt: skip
    assert two.dtype == torch.float64 and torch.allclose(one.double(), two, atol=1e-5)
    assert fourier(z.bfloat16(), 7, 0.5).dtype == torch.float32


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_white_features_have_unit_covariance_in_any_unit_and_basis(unit):
    draws = torch.Generator().manual_seed(3)
    z = unit * torch.randn(50, 4, dtype=torch.float64, generator=draws)
    z[:, 2] = unit  # constant
    z = z + 1e3 * z[:, :1]  # one direction drowns the others
    found = white(z, 1e-12)
    assert torch.allclose(found.mean(0), torch.zeros(4, dtype=z.dtype), atol=1e-6)
    values = torch.linalg.eigvalsh(found.T @ found / len(z))
    assert torch.allclose(values, torch.tensor([0.0, 1, 1, 1]).double(), atol=1e-3)


def test_a_single_row_and_no_variance_are_zero():
    assert not white(torch.ones(1, 3)).any()
    assert not white(torch.zeros(4, 3)).any()


def test_repeated_features_become_one_and_nan_is_refused():
    z = torch.randn(9, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = white(z.expand(9, 3), 0.0)
    values = torch.linalg.eigvalsh(found.T @ found / 9)
    assert torch.allclose(values, torch.tensor([0.0, 0, 1]).double(), atol=1e-2)
    with pytest.raises(NumericalError, match="NaN"):
        white(torch.full((4, 2), float("nan")))


def test_the_gradient_through_both_is_right():
    z = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    y = torch.nn.functional.one_hot(torch.arange(12) % 2, 2).double()

    def value(z):
        draws = torch.Generator().manual_seed(5)
        return rho(fourier(white(z), 5, 0.2, draws), y, 1e-2)

    assert torch.autograd.gradcheck(value, z.requires_grad_(), atol=1e-6)


def test_labels_that_only_a_kernel_reads_are_read_from_lifted_features():
    z = torch.randn(4000, 2, generator=torch.Generator().manual_seed(6))
    y = torch.nn.functional.one_hot((z[:, 0] * z[:, 1] > 0).long(), 2).double()  # exclusive or
    plain, lifted = rho(z, y), rho(fourier(white(z), 200, 0.5), y)
    assert plain < 0.01
    assert lifted > 0.6


@pytest.mark.parametrize("unit", [1e-150, 1e-6, 1.0, 1e6, 1e150])
def test_even_rows_are_of_one_length_in_any_unit_and_about_any_middle(unit):
    draws = torch.Generator().manual_seed(8)
    z = torch.randn(31, 5, dtype=torch.float64, generator=draws)
    found = even(unit * z)
    assert torch.allclose(found.square().sum(1), torch.full((31,), 5.0).double())
    assert torch.allclose(found, even(z), atol=1e-12)
    assert torch.allclose(even(z + 3.0), even(z), atol=1e-12)


def test_rows_in_the_middle_are_zero_and_so_is_their_gradient():
    for z in (torch.ones(1, 3), torch.zeros(4, 3), torch.full((4, 1), 1e30)):
        given = z.clone().requires_grad_()
        found = even(given)
        assert not found.any() and found.dtype == torch.float32
        found.sum().backward()
        assert bool(given.grad.isfinite().all())
    assert even(torch.randn(3, 2).bfloat16()).dtype == torch.float32


def test_rows_below_the_floor_stay_short():
    z = torch.randn(31, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    assert torch.allclose(even(z, 1e-20), even(z))
    assert even(1e-8 * z, 1e-9).abs().max() < 1e-2
    assert torch.allclose(even(1e-8 * z, 1e-9) * 2, even(2e-8 * z, 1e-9), rtol=1e-4)


def test_labels_in_short_rows_are_read_from_even_ones():
    """A few long rows say nothing: least squares follows them, and an even probe does not."""
    draws = torch.Generator().manual_seed(9)
    labels = torch.arange(400) % 2
    y = torch.nn.functional.one_hot(labels, 2).double()
    z = torch.randn(400, 8, dtype=torch.float64, generator=draws)
    z[:, 0] += 3.0 * (2 * labels - 1)
    z *= 10 ** (4 * torch.rand(400, 1, dtype=torch.float64, generator=draws))
    assert rho(z, y) < 0.4 < 0.6 < rho(even(z), y)


def test_the_gradient_through_even_rows_is_right():
    z = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    y = torch.nn.functional.one_hot(torch.arange(12) % 2, 2).double()
    z = torch.cat([z, -z, torch.zeros_like(z)])  # whose median stays where rows move
    labels = torch.cat([y, y, y])

    def value(moving):
        return rho(even(torch.cat([moving, z[12:]])), labels, 1e-2)

    assert torch.autograd.gradcheck(value, z[:12].clone().requires_grad_(), atol=1e-6)
