import pytest
import torch

from helpers.reference import NaiveDummyLinear
from immunis import InputError, NumericalError, PreconditionedLinear
from immunis.theory.regularizers import feature_hessian, r_well, r_well_gradient

F = torch.float64


def batch(n=30, d=4):
    return torch.randn(n, d, dtype=F), torch.randn(d, d, dtype=F)


def test_gradient_is_the_naive_one_on_the_correct_side():
    x, weight = batch()
    layer = PreconditionedLinear(4, 4, bias=False, ridge=0.1, dtype=F)
    layer.weight.data.copy_(weight)
    naive = weight.clone().requires_grad_()
    r_well(feature_hessian(layer(x))).backward()
    r_well(feature_hessian(NaiveDummyLinear.apply(x, naive, 0.1, False))).backward()
    torch.testing.assert_close(layer.weight.grad, naive.grad)
    printed = weight.clone().requires_grad_()
    r_well(feature_hessian(NaiveDummyLinear.apply(x, printed, 0.1, True))).backward()
    assert not torch.allclose(printed.grad, naive.grad, rtol=0.1)


def test_without_ridge_it_is_the_step_of_algorithm_1():
    x, weight = batch()
    layer = PreconditionedLinear(4, 4, bias=False, ridge=0.0, dtype=F)
    layer.weight.data.copy_(weight)
    r_well(feature_hessian(layer(x))).backward()
    theta = weight.T
    expected = 2 * theta @ r_well_gradient(feature_hessian(x @ theta))
    torch.testing.assert_close(layer.weight.grad, expected.T, rtol=1e-8, atol=1e-8)


def test_one_backward_pass_serves_plain_and_preconditioned_losses():
    x, weight = batch()
    layer = PreconditionedLinear(4, 4, ridge=0.1, dtype=F)
    plain = torch.nn.Linear(4, 4, dtype=F)
    plain.load_state_dict(layer.state_dict())
    layer.preconditioned = False
    supervised = layer(x).square().mean()
    layer.preconditioned = True
    (supervised + r_well(feature_hessian(layer(x)))).backward()
    own = PreconditionedLinear(4, 4, ridge=0.1, dtype=F)
    own.load_state_dict(layer.state_dict())
    r_well(feature_hessian(own(x))).backward()
    plain(x).square().mean().backward()
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad + own.weight.grad)
    torch.testing.assert_close(layer.bias.grad, plain.bias.grad + own.bias.grad)


def test_rectangular_layers_and_leading_dimensions_work():
    layer = PreconditionedLinear(3, 5)
    x = torch.randn(2, 7, 3, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad.shape == (5, 3)
    assert x.grad.shape == x.shape
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_any_optimizer_can_use_it():
    x, _ = batch()
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        layer = PreconditionedLinear(4, 4, bias=False, dtype=F)
        before = r_well(feature_hessian(layer(x))).item()
        optimizer = make(layer.parameters(), lr=1e-3)
        for _ in range(20):
            optimizer.zero_grad()
            r_well(feature_hessian(layer(x))).backward()
            optimizer.step()
        assert r_well(feature_hessian(layer(x))).item() < before


def test_a_singular_batch_without_ridge_is_said():
    layer = PreconditionedLinear(4, 4, ridge=0.0, dtype=F)
    with pytest.raises(NumericalError, match="raise ridge or the batch size"):
        layer(torch.randn(2, 4, dtype=F)).sum().backward()
    with pytest.raises(InputError, match="at least 0"):
        PreconditionedLinear(4, 4, ridge=-1)
