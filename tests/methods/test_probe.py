"""The terms of probe that are formulas of features."""

from types import SimpleNamespace

import pytest
import torch

from immunis import NumericalError, SettingsError
from immunis.methods.probe import hold


def held_view(after, before):
    return SimpleNamespace(primary={"": after}, teacher=(None, before))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_hold_measures_each_direction_by_what_is_left_of_it(scale):
    before = torch.linalg.qr(torch.randn(40, 5, dtype=torch.float64))[0] * scale
    shrink = torch.diag(torch.tensor([1.0, 1, 1, 1, 0.01], dtype=torch.float64))
    after = before @ shrink
    assert torch.allclose(hold(held_view(after, before)), torch.tensor(99.0**2 / 5).double())
    mixing = torch.randn(5, 5, dtype=torch.float64)  # a map of both changes nothing
    found = hold(held_view(after @ mixing, before @ mixing))
    assert torch.allclose(found, torch.tensor(99.0**2 / 5).double(), rtol=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_hold_bounds_how_far_eigenvalues_have_fallen(seed):
    torch.manual_seed(seed)
    before = torch.randn(60, 6, dtype=torch.float64) * torch.logspace(0, -3, 6)
    after = before @ torch.randn(6, 6, dtype=torch.float64) + 0.1 * torch.randn(60, 6)
    value = float(hold(held_view(after, before)))
    now, then = (torch.linalg.eigvalsh(z.T @ z) for z in (after, before))
    assert bool((then <= now * (1 + (6 * value) ** 0.5) ** 2 * (1 + 1e-6)).all())


@pytest.mark.parametrize("growth", [1.0, 1e6])
def test_a_direction_that_grows_does_not_let_others_shrink(growth):
    before = torch.linalg.qr(torch.randn(40, 4, dtype=torch.float64))[0]
    after = before @ torch.diag(torch.tensor([growth, 1e-2, 1e-2, 1e-2]).double())
    assert float(hold(held_view(after, before))) > 0.99 * 3 * 99**2 / 4
    gone = torch.zeros_like(before).requires_grad_()
    hold(held_view(gone, before)).backward()
    assert bool(gone.grad.isfinite().all())


def test_hold_has_the_gradient_of_its_formula():
    before = torch.randn(20, 3, dtype=torch.float64)
    after = (before + 0.3 * torch.randn(20, 3)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: hold(held_view(z, before)), (after,))


def test_hold_says_what_it_needs():
    with pytest.raises(SettingsError, match="4 primary rows for 4 features"):
        hold(held_view(torch.ones(4, 4), torch.ones(4, 4)))
    with pytest.raises(NumericalError, match="NaN"):
        hold(held_view(torch.full((9, 2), torch.nan), torch.ones(9, 2)))
    dead = torch.zeros(9, 2)
    assert float(hold(held_view(dead, dead))) == 0
