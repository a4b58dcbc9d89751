import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from helpers import reference
from helpers.reference import random_orthogonal, with_spectrum
from immunis import InputError, NumericalError
from immunis.theory.regularizers import (
    feature_hessian,
    hessian_to_theta,
    kappa,
    kappa_gradient,
    linear_hessian,
    r_ill,
    r_ill_gradient,
    r_well,
    r_well_gradient,
)

F = torch.float64
spectra = st.lists(st.floats(1e-2, 1e2), min_size=2, max_size=7).filter(
    lambda v: max(v) / min(v) > 1 + 1e-6
)
CASES = {
    "square": torch.randn(5, 5, dtype=F, generator=torch.Generator().manual_seed(1)),
    "wide": torch.randn(3, 6, dtype=F, generator=torch.Generator().manual_seed(2)),
    "tall": torch.randn(6, 3, dtype=F, generator=torch.Generator().manual_seed(3)),
    "symmetric": with_spectrum([5.0, 3.0, 1.0, 0.5]),
    "indefinite": with_spectrum([5.0, -3.0, 1.0, -0.5]),
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("name", ["r_well", "r_ill", "kappa"])
def test_value_and_gradient_equal_the_naive_ones(case, name):
    ours, naive = globals()[name], getattr(reference, name)
    s = CASES[case].clone().requires_grad_()
    torch.testing.assert_close(ours(s), naive(s))
    (expected,) = torch.autograd.grad(naive(s), s)
    (found,) = torch.autograd.grad(ours(s), s)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(globals()[f"{name}_gradient"](s.detach()), expected)


@pytest.mark.parametrize("loss", [r_well, r_ill, kappa])
def test_gradcheck_for_theta_and_for_feature_batches(loss):
    k = with_spectrum([4.0, 2.0, 1.0, 0.3])
    theta = torch.randn(4, 4, dtype=F, requires_grad=True)
    assert gradcheck(lambda t: loss(linear_hessian(t, k)), (theta,))
    z = torch.randn(9, 4, dtype=F, requires_grad=True)
    assert gradcheck(lambda f: loss(feature_hessian(f)), (z,))


@pytest.mark.parametrize("gradient", [r_well_gradient, r_ill_gradient, kappa_gradient])
def test_theorem_4_2_chain_rule(gradient):
    loss = {r_well_gradient: r_well, r_ill_gradient: r_ill, kappa_gradient: kappa}[gradient]
    k, theta = with_spectrum([4.0, 2.0, 1.0]), torch.randn(3, 3, dtype=F, requires_grad=True)
    (expected,) = torch.autograd.grad(loss(linear_hessian(theta, k)), theta)
    h = linear_hessian(theta.detach(), k)
    torch.testing.assert_close(hessian_to_theta(theta.detach(), k, gradient(h)), expected)


def test_preconditioning_needs_no_inverse():
    """K⁻¹∇_θR = 2θ·∇_H R, and it exists for singular K too."""
    k, theta = with_spectrum([4.0, 2.0, 1.0]), torch.randn(3, 3, dtype=F)
    g = r_well_gradient(linear_hessian(theta, k))
    torch.testing.assert_close(torch.linalg.solve(k, hessian_to_theta(theta, k, g)), 2 * theta @ g)
    singular = with_spectrum([4.0, 2.0, 0.0])
    assert torch.isfinite(2 * theta @ r_ill_gradient(linear_hessian(theta, singular))).all()


# Theorem A.1 (R_well) and theorem 4.1 (R_ill), property by property.


@given(spectra, st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_theorem_nonnegativity(values, seed):
    s = with_spectrum(values, seed)
    assert float(r_well(s)) > 0
    assert float(r_ill(s)) > 0


def test_theorem_r_well_is_zero_only_at_kappa_one():
    assert float(r_well(3 * random_orthogonal(4))) == pytest.approx(0, abs=1e-12)
    assert float(r_well(torch.diag(torch.tensor([1.0, 1.0, 0.0])))) > 0.1  # rank-deficient


@given(spectra)
@settings(max_examples=50, deadline=None)
def test_theorem_upper_bounds(values):
    s = with_spectrum(values)
    top, low = max(values), min(values)
    log_kappa = math.log(top / low)
    assert log_kappa <= len(values) / low**2 * float(r_well(s)) * (1 + 1e-6)
    assert 1 / log_kappa <= top**2 * float(r_ill(s)) * (1 + 1e-6)


@given(spectra, st.floats(0.01, 0.99))
@settings(max_examples=50, deadline=None)
def test_theorem_monotone_in_s_itself(values, share):
    """Theorems A.1(4) and 4.1(4): a gradient step on S moves κ(S) as promised."""
    values = sorted(values, reverse=True)
    if values[0] / values[1] < 1.001 or values[-2] / values[-1] < 1.001:
        return
    s, k, p = with_spectrum(values), values[0] / values[-1], len(values)
    eta = share * (k - 1) / ((1 - 1 / p) * k + 1 / p)
    after = torch.linalg.svdvals(s - eta * r_well_gradient(s))
    assert float(after[0] / after[-1]) < k
    eta = share * p / (p - 1) / float(r_ill(s)) ** 2
    after = torch.linalg.svdvals(s - eta * r_ill_gradient(s))
    assert float(after[0] / after[-1]) > k


def test_r_ill_scale_and_limit():
    """R_ill → 0 as the spectrum grows apart with σ_min fixed, and scales as 1/c²."""
    s = with_spectrum([1e6, 1.0])
    assert float(r_ill(s)) == pytest.approx(4e-12, rel=1e-3)
    assert float(r_ill(10 * s)) == pytest.approx(float(r_ill(s)) / 100)


# Repeated and zero singular values.


def test_gradients_at_repeated_values_do_not_depend_on_the_basis():
    values = [3.0, 3.0, 2.0, 1.0, 1.0]
    for seed in range(3):
        q = random_orthogonal(5, seed)
        s = q * torch.tensor(values, dtype=F) @ q.T
        s = (s + s.T) / 2
        for gradient in (r_well_gradient, r_ill_gradient, kappa_gradient):
            rotated = q.T @ gradient(s) @ q
            torch.testing.assert_close(
                rotated, gradient(torch.diag(torch.tensor(values, dtype=F))), atol=1e-9, rtol=1e-9
            )


def test_gradient_at_a_tie_is_a_subgradient_of_the_spectral_norm():
    s = torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=F))
    g = r_well_gradient(s) + s / 3  # element of ∂(σ₁²/2)
    for seed in range(20):
        other = torch.randn(3, 3, dtype=F, generator=torch.Generator().manual_seed(seed))
        lower = 2.0 + float((g * (other - s)).sum())
        assert float(torch.linalg.matrix_norm(other, 2) ** 2 / 2) >= lower - 1e-9


def test_zero_one_by_one_and_flat_spectra_are_defined():
    zero = torch.zeros(3, 3, dtype=F)
    assert float(r_well(zero)) == 0
    assert r_well_gradient(zero).abs().sum() == 0
    assert float(r_ill(zero)) == math.inf
    assert r_ill_gradient(zero).abs().sum() == 0
    assert float(r_ill(torch.eye(4))) == math.inf
    assert r_ill_gradient(torch.eye(4)).abs().sum() == 0
    one = torch.full((1, 1), 5.0, dtype=F)
    assert float(r_well(one)) == 0
    assert float(kappa(one)) == 1
    assert float(kappa_gradient(one)) == 0
    with pytest.raises(InputError, match="zero"):
        kappa(zero)


def test_zero_singular_values_do_not_count():
    padded = torch.zeros(6, 6, dtype=F)
    padded[:3, :3] = with_spectrum([3.0, 2.0, 1.0])
    torch.testing.assert_close(r_ill(padded), reference.r_ill(padded, rank=3))
    torch.testing.assert_close(r_ill_gradient(padded)[:3, :3], r_ill_gradient(padded[:3, :3]))
    torch.testing.assert_close(r_ill(padded, rank=3), r_ill(padded))


@pytest.mark.parametrize("scale", [1e-60, 1e-5, 1e5, 1e60])
def test_huge_and_tiny_matrices_keep_their_relative_gradient(scale):
    s = with_spectrum([3.0, 2.0, 1.0])
    for gradient, power in ((r_well_gradient, 1), (r_ill_gradient, -3), (kappa_gradient, -1)):
        found = gradient(scale * s)
        for _ in range(abs(power)):
            found = found / scale if power > 0 else found * scale
        torch.testing.assert_close(found, gradient(s), rtol=1e-9, atol=1e-12)


def test_dtype_of_the_input_is_kept():
    s = with_spectrum([3.0, 2.0]).float()
    assert r_well(s).dtype == r_ill_gradient(s).dtype == torch.float32


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.zeros(0, 0)])
def test_what_is_no_matrix_is_refused(bad):
    with pytest.raises(InputError, match="matrix"):
        r_well(bad)
    with pytest.raises(NumericalError):
        r_ill(torch.full((2, 3), float("nan")))


def test_the_accelerators_path_agrees_with_the_decomposition():
    from immunis.theory import regularizers as r
    from immunis.theory.spectrum import leading_projector, trailing_projector

    z = torch.randn(90, 12, dtype=torch.float64) * torch.logspace(0, -3, 12, dtype=torch.float64)
    s = r.feature_hessian(z)
    top, bottom = leading_projector(s), trailing_projector(s)
    for fast, slow in (
        (r._well_of(s, *top), r._well(s)),
        (r._ill_of(s, *bottom), r._ill(s)),
        (r._kappa_of(*top, *bottom[:2]), r._kappa(s)),
    ):
        assert torch.allclose(fast[0], slow[0], rtol=1e-8)
        assert torch.allclose(fast[1], slow[1], rtol=1e-7, atol=1e-9 * float(slow[1].abs().max()))
    eye = torch.eye(4, dtype=torch.float64)
    value, gradient = r._ill_of(eye, *trailing_projector(eye))
    assert float(value) == float("inf")
    assert not gradient.any()
