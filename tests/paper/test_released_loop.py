"""The released loop's closed forms against the same step written down naively."""

import pytest
import torch

from helpers.reference import naive_released_step
from immunis.core.errors import InputError, NumericalError, SettingsError
from immunis.paper import released_loop as loop

D, BATCH = 12, 5


@pytest.fixture
def batch():
    draw = torch.Generator().manual_seed(1)
    x_p, x_h = (torch.randn(BATCH, D, generator=draw, dtype=torch.float64) for _ in range(2))
    weight = torch.randn(D, D, generator=draw, dtype=torch.float64)
    omega = torch.randn(D, generator=draw, dtype=torch.float64)
    return weight, omega, x_p, torch.tensor([0.0, 1, 1, 0, 1], dtype=torch.float64), x_h


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("objective", ["algorithm_1", "r_ill", "opt_kappa", "opt_log_kappa"])
def test_a_step_equals_autograd_through_full_decompositions(batch, objective, loss):
    settings = loop.Settings(objective=objective, loss=loss, ridge_harmful=0.3)
    weight, omega, *data = batch
    expected = naive_released_step(weight, omega, *data, settings)
    weight, omega = weight.clone(), omega.clone()
    loop._step(weight, omega, *data, settings)
    torch.testing.assert_close(weight.grad, expected[0], rtol=1e-5, atol=0)
    if objective == "algorithm_1":
        torch.testing.assert_close(omega.grad, expected[1])
    else:
        assert omega.grad is None


def test_the_printed_inverse_is_the_inverse_on_the_outputs(batch):
    _, _, x, _, pull = batch
    inverse = torch.linalg.inv(x.T @ x + 0.2 * torch.eye(D, dtype=torch.float64))
    torch.testing.assert_close(loop.printed_inverse(pull, x, 0.2), pull @ inverse)


def rows(n=40):
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(2, n, D, generator=draw, dtype=torch.float64)
    return (x[0], x[0, :, 0].clone()), x[1]


def test_the_loop_is_seeded_stops_where_asked_and_leaves_what_it_was_given():
    theta = torch.eye(D, dtype=torch.float64)
    settings = loop.Settings(batch=8)
    found = dict(loop.run(theta, *rows(), settings, (1, 3), seed=4))
    assert list(found) == [1, 3]
    assert torch.equal(theta, torch.eye(D, dtype=torch.float64))
    assert not torch.equal(found[1], found[3])  # what was yielded is not changed afterwards
    again = dict(loop.run(theta, *rows(), settings, (1, 3), seed=4))
    assert torch.equal(found[3], again[3])
    other = dict(loop.run(theta, *rows(), settings, (3,), seed=5))
    assert not torch.equal(found[3], other[3])
    single = dict(loop.run(theta.float(), *rows(), settings, (1,), seed=4))
    assert single[1].dtype == torch.float64
    torch.testing.assert_close(single[1], found[1], atol=1e-4, rtol=0)


def test_what_cannot_be_run_is_said():
    theta, settings = torch.eye(D, dtype=torch.float64), loop.Settings(batch=8)
    primary, harmful = rows()
    with pytest.raises(InputError, match="40 primary rows, 40 targets and 39 harmful"):
        next(loop.run(theta, primary, harmful[1:], settings, (1,)))
    with pytest.raises(InputError, match="one batch of 64"):
        next(loop.run(theta, primary, harmful, loop.Settings(), (1,)))
    with pytest.raises(NumericalError, match="diverged"):
        list(loop.run(theta * float("inf"), primary, harmful, settings, (2,)))
    alone = loop.Settings(objective="r_ill", batch=8)  # decomposes nothing on the way
    with pytest.raises(NumericalError, match="not finite after 2 epochs"):
        list(loop.run(theta * float("inf"), primary, harmful, alone, (2,)))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"objective": "r_il"}, "r_ill"),
        ({"step": 0.0}, "step=0.0"),
        ({"ridge_primary": -1.0}, "ridge_primary"),
        ({"lambda_harmful": float("nan")}, "lambda_harmful"),
        ({"batch": 1}, "batch=1"),
        ({"batch": 2.5}, "expected int"),
    ],
)
def test_impossible_settings_are_refused(bad, says):
    with pytest.raises(SettingsError, match=says):
        loop.Settings(**bad)
