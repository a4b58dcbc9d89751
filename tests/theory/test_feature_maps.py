"""Random features and rows of one length: their scale, their gradients, and what ρ reads there."""

import numpy as np
import pytest
import torch

from immunis.theory import feature_maps
from immunis.theory.feature_maps import even, fourier, narrowed
from immunis.theory.probes import rho


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


def test_the_gradient_through_random_features_is_right():
    z = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    y = torch.nn.functional.one_hot(torch.arange(12) % 2, 2).double()

    def value(z):
        draws = torch.Generator().manual_seed(5)
        return rho(fourier(z, 5, 0.2, draws), y, 1e-2)

    assert torch.autograd.gradcheck(value, z.requires_grad_(), atol=1e-6)


def test_labels_that_only_a_kernel_reads_are_read_from_lifted_features():
    z = torch.randn(4000, 2, generator=torch.Generator().manual_seed(6))
    y = torch.nn.functional.one_hot((z[:, 0] * z[:, 1] > 0).long(), 2).double()  # exclusive or
    plain, lifted = rho(z, y), rho(fourier(z, 200, 0.5), y)
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


def test_rows_in_the_middle_are_zero():
    for z in (torch.ones(1, 3), torch.zeros(4, 3), torch.full((4, 1), 1e30)):
        found = even(z)
        assert not found.any() and found.dtype == torch.float32
    assert even(torch.randn(3, 2).bfloat16()).dtype == torch.float32


def test_labels_in_short_rows_are_read_from_even_ones():
    """A few long rows say nothing: least squares follows them, and an even probe does not."""
    draws = torch.Generator().manual_seed(9)
    labels = torch.arange(400) % 2
    y = torch.nn.functional.one_hot(labels, 2).double()
    z = torch.randn(400, 8, dtype=torch.float64, generator=draws)
    z[:, 0] += 3.0 * (2 * labels - 1)
    z *= 10 ** (4 * torch.rand(400, 1, dtype=torch.float64, generator=draws))
    assert rho(z, y) < 0.4 < 0.6 < rho(even(z), y)


def test_wide_features_are_narrowed_and_narrow_ones_stay():
    z = torch.randn(50, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert narrowed(z, 400) is z
    found = narrowed(z, 300, torch.Generator().manual_seed(2))
    assert found.shape == (50, 300) and found.dtype == z.dtype
    kept = found.square().sum(1) / z.square().sum(1)  # lengths stay on average
    assert 0.9 < float(kept.mean()) < 1.1
    again = narrowed(z.float(), 300, torch.Generator().manual_seed(2))
    torch.testing.assert_close(again, found.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [5, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_principal_directions_are_those_of_a_singular_value_decomposition(n, dtype, monkeypatch):
    monkeypatch.setattr(feature_maps, "COLUMNS", 7)
    draws = torch.Generator().manual_seed(0)
    sizes = torch.logspace(1, -1, 60, dtype=torch.float64)
    z = (torch.randn(n, 60, generator=draws, dtype=torch.float64) * sizes + 3).to(dtype)
    mean, directions = feature_maps.principal_directions(z, 4)
    _, _, expected = np.linalg.svd(z.double().numpy() - z.double().numpy().mean(0))
    assert directions.dtype == mean.dtype == dtype
    torch.testing.assert_close(mean, z.mean(0))
    overlap = np.abs(np.einsum("dk,kd->k", directions.double().numpy(), expected[:4]))
    np.testing.assert_allclose(overlap, 1.0, atol=1e-5)
    torch.testing.assert_close(
        directions.T @ directions, torch.eye(4, dtype=dtype), atol=1e-4, rtol=0
    )


def test_rows_of_few_directions_have_few_and_constant_ones_none():
    draws = torch.Generator().manual_seed(0)
    z = torch.randn(30, 3, generator=draws) @ torch.randn(3, 50, generator=draws)
    mean, directions = feature_maps.principal_directions(z, 20)
    assert directions.shape == (50, 3)
    back = (z - mean) @ directions @ directions.T + mean
    torch.testing.assert_close(back, z, atol=1e-4, rtol=1e-4)
    assert feature_maps.principal_directions(torch.ones(5, 8), 3)[1].shape == (8, 0)
