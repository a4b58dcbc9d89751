"""Random features: the kernel they stand for, their scale, and what the lifted ρ takes away."""

import pytest
import torch

from immunis.lifting import fourier, standardised
from immunis.readable import rho


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
def test_standardised_features_have_unit_deviation_in_any_unit(unit):
    z = unit * torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    z[:, 2] = unit
    found = standardised(z)
    assert torch.allclose(found.mean(0), torch.zeros(4, dtype=z.dtype), atol=1e-9)
    assert torch.allclose(found.std(0, unbiased=False), torch.tensor([1.0, 1, 0, 1]).double())


def test_a_single_row_and_no_variance_are_zero():
    assert not standardised(torch.ones(1, 3)).any()
    assert not standardised(torch.zeros(4, 3)).any()


def test_the_gradient_through_both_is_right():
    z = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    y = torch.nn.functional.one_hot(torch.arange(12) % 2, 2).double()

    def value(z):
        draws = torch.Generator().manual_seed(5)
        return rho(fourier(standardised(z), 5, 0.2, draws), y, 1e-2)

    assert torch.autograd.gradcheck(value, z.requires_grad_(), atol=1e-6)


def test_labels_that_only_a_kernel_reads_are_read_from_lifted_features():
    z = torch.randn(4000, 2, generator=torch.Generator().manual_seed(6))
    y = torch.nn.functional.one_hot((z[:, 0] * z[:, 1] > 0).long(), 2).double()  # exclusive or
    plain, lifted = rho(z, y), rho(fourier(standardised(z), 200, 0.5), y)
    assert plain < 0.01
    assert lifted > 0.6
