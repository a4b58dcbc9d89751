import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import reference
from helpers.reference import random_orthogonal, with_spectrum
from immunis import InputError, Spectrum
from immunis.theory.gram import Gram, gram_of
from immunis.theory.guarantees import (
    ceiling,
    certified_ill_step,
    certified_well_factors,
    certified_well_step,
    damped,
    eigenvalues_after_ill_step,
    eigenvalues_after_well_step,
    frontier,
    ill_steps,
    well_steps,
    whiten,
)
from immunis.theory.regularizers import ill_gap, linear_hessian, r_ill_gradient, r_well_gradient

F = torch.float64
spectra = st.lists(st.floats(1e-2, 1e2), min_size=2, max_size=7)
ties = st.sampled_from(["none", "top", "bottom"])


def prepared(values, tie):
    sigma = torch.tensor(sorted(values, reverse=True), dtype=F)
    if tie == "top":
        sigma[1] = sigma[0]
    if tie == "bottom":
        sigma[-2] = sigma[-1]
    return sigma


def kappa_of(sigma):
    return float(sigma.max() / sigma.min())


def inside(step, steps):
    return any(low < step < high for low, high in steps)


@pytest.mark.parametrize("values", [[5.0, 3.0, 1.0], [5.0, 5.0, 1.0], [5.0, 3.0, 1.0, 1.0]])
def test_eigenvalues_move_as_in_closed_form(values):
    sigma, k = torch.tensor(values, dtype=F), with_spectrum(values)
    eye, theta = torch.eye(len(values), dtype=F), random_orthogonal(len(values), 7)
    h = linear_hessian(theta, k)
    moved = theta @ (eye - 2 * 0.01 * r_well_gradient(h))
    torch.testing.assert_close(
        torch.linalg.eigvalsh(linear_hessian(moved, k)),
        eigenvalues_after_well_step(sigma, 0.01, len(values)).sort().values,
    )
    moved = theta @ (eye - 2 * 0.5 * r_ill_gradient(h))
    torch.testing.assert_close(
        torch.linalg.eigvalsh(linear_hessian(moved, k)),
        eigenvalues_after_ill_step(sigma, 0.5).sort().values,
    )


@given(spectra, ties, st.integers(0, 4), st.floats(1e-3, 4))
@settings(max_examples=300, deadline=None)
def test_well_steps_are_exactly_those_that_lower_kappa(values, tie, extra, share):
    sigma = prepared(values, tie)
    dimension = len(sigma) + extra
    step = share / float(sigma[0])
    after = kappa_of(eigenvalues_after_well_step(sigma, step, dimension)) / kappa_of(sigma)
    if abs(after - 1) > 1e-9:  # on the boundary rounding decides
        assert inside(step, well_steps(sigma, dimension)) == (after < 1)


@given(spectra, ties, st.floats(1e-3, 20))
@settings(max_examples=300, deadline=None)
def test_ill_steps_are_exactly_those_that_raise_kappa(values, tie, share):
    sigma = prepared(values, tie)
    step = share / float(sigma[-1]) * float(ill_gap(sigma)) ** 2
    after = eigenvalues_after_ill_step(sigma, step)
    if float(after.min()) < 1e-12 * float(after.max()):
        return  # a rank is lost
    ratio = kappa_of(after) / kappa_of(sigma)
    if abs(ratio - 1) > 1e-9:
        assert inside(step, ill_steps(sigma)) == (ratio > 1)


@given(spectra, ties, st.integers(0, 4))
@settings(max_examples=100, deadline=None)
def test_certified_steps_keep_their_word(values, tie, extra):
    sigma = prepared(values, tie)
    dimension, before = len(sigma) + extra, kappa_of(sigma)
    if before < 1 + 1e-6:
        return
    step = certified_well_step(sigma, dimension)
    best = kappa_of(eigenvalues_after_well_step(sigma, step, dimension))
    assert best < before
    for share in (0.5, 0.9, 1.1, 1.5, 3.0):  # and none lowers κ more
        other = kappa_of(eigenvalues_after_well_step(sigma, share * step, dimension))
        assert best <= other * (1 + 1e-9)
    assert kappa_of(eigenvalues_after_ill_step(sigma, certified_ill_step(sigma))) > before


def test_no_step_is_certified_where_none_helps():
    flat = torch.full((3,), 2.0, dtype=F)
    assert well_steps(flat, 5) == ill_steps(flat) == ()
    assert certified_well_step(flat, 5) == certified_ill_step(flat) == 0
    torch.testing.assert_close(eigenvalues_after_ill_step(flat, 1.0), flat)
    assert certified_well_step(torch.ones(1, dtype=F), 1) == 0


@given(spectra, st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_k_minus_one_certified_well_steps_reach_kappa_one(values, extra):
    sigma = torch.tensor(sorted(values, reverse=True), dtype=F)
    dimension = len(sigma) + extra
    factors = certified_well_factors(sigma, dimension, len(sigma) - 1)
    assert kappa_of(sigma * factors**2) == pytest.approx(1)
    one = certified_well_factors(sigma, dimension, 1)
    step = certified_well_step(sigma, dimension)
    torch.testing.assert_close(
        sigma * one**2, eigenvalues_after_well_step(sigma, step, dimension), rtol=1e-9, atol=0
    )


# Where the paper's printed statements fail (THEORY section 2).


def test_counterexample_r_well_interval_holds_a_step_that_makes_kappa_explode():
    sigma, d = torch.tensor([1.0, 0.1, 0.05], dtype=F), 3
    step = 1 / (2 * (1 - 1 / d) * float(sigma[0]))
    assert step < reference.paper_well_interval(sigma, d)
    near = step * (1 - 1e-6)
    assert kappa_of(eigenvalues_after_well_step(sigma, near, d)) > 1e6 * kappa_of(sigma)
    assert not inside(near, well_steps(sigma, d))


def test_counterexample_r_well_interval_fails_on_some_percent_of_random_spectra():
    generator = torch.Generator().manual_seed(0)
    raised = 0
    for _ in range(2000):
        d = int(torch.randint(2, 11, (), generator=generator))
        sigma = torch.rand(d, dtype=F, generator=generator).sort(descending=True).values + 1e-3
        share = float(torch.rand((), generator=generator))
        step = share * reference.paper_well_interval(sigma, d)
        raised += kappa_of(eigenvalues_after_well_step(sigma, step, d)) > kappa_of(sigma)
    assert 0.005 < raised / 2000 < 0.5


def test_counterexample_r_ill_bound_lowers_kappa():
    sigma = torch.tensor([10.0] * 9 + [4.9], dtype=F)
    step = 0.3 * float(ill_gap(sigma)) ** 2
    assert step < reference.paper_ill_interval(sigma)
    assert kappa_of(sigma) == pytest.approx(2.04, abs=0.01)
    assert kappa_of(eigenvalues_after_ill_step(sigma, step)) == pytest.approx(1.93, abs=0.01)
    assert not inside(step, ill_steps(sigma))


def test_counterexample_proposition_3_2_is_not_the_spectrum():
    theta = torch.randn(8, 8, dtype=F)
    x = torch.randn(50, 8, dtype=F)
    k = x.T @ x
    true = torch.linalg.eigvalsh(linear_hessian(theta, k)).flip(0)
    printed = reference.paper_singular_values(theta, k)
    assert not torch.allclose(printed, true, rtol=0.05)
    u, _, _ = torch.linalg.svd(theta)  # it holds when U_θᵀKU_θ is diagonal
    aligned = u * torch.arange(1.0, 9.0, dtype=F) @ u.T
    torch.testing.assert_close(
        reference.paper_singular_values(theta, aligned),
        torch.linalg.eigvalsh(linear_hessian(theta, aligned)).flip(0),
    )


@pytest.mark.parametrize("bad", [torch.tensor([1.0, 0.0]), torch.tensor([]), torch.tensor([-1.0])])
def test_steps_need_positive_eigenvalues(bad):
    with pytest.raises(InputError, match="positive"):
        well_steps(bad, 3)
    with pytest.raises(InputError, match="fraction"):
        certified_ill_step(torch.tensor([2.0, 1.0]), 1.0)


# The ceiling and the frontier (THEORY section 3).


def grams(k_p, k_h):
    def make(matrix):
        zero = torch.zeros(len(matrix), dtype=F)
        empty = torch.zeros(0, dtype=F)
        return Gram(100, zero, matrix, empty, matrix[:, :0], torch.zeros(0, 0, dtype=F))

    return make(k_p), make(k_h)


@given(st.integers(2, 6), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_no_theta_beats_the_ceiling_and_the_frontier_reaches_it(d, seed):
    generator = torch.Generator().manual_seed(seed)
    k_p, k_h = (
        with_spectrum(torch.exp(torch.randn(d, generator=generator, dtype=F)), seed + i)
        for i in (1, 2)
    )
    top = ceiling(*grams(k_p, k_h))
    base = float(reference.kappa(k_p) / reference.kappa(k_h))
    assert reference.brute_force_ratio(k_p, k_h, 60, seed) * base <= top * (1 + 1e-9)
    for budget in (1.0, 7.0):
        theta = frontier(Spectrum.of(k_p), Spectrum.of(k_h), budget)
        kappa_p = float(reference.kappa(linear_hessian(theta, k_p)))
        kappa_h = float(reference.kappa(linear_hessian(theta, k_h)))
        assert kappa_p == pytest.approx(budget, rel=1e-6)
        assert kappa_h / kappa_p * base == pytest.approx(top, rel=1e-6)


def test_equal_grams_cannot_be_immunized():
    k = with_spectrum([5.0, 2.0, 1.0])
    assert ceiling(*grams(k, k)) == pytest.approx(1)
    assert ceiling(*grams(k, 7 * k)) == pytest.approx(1)


def test_only_theta_theta_transpose_matters():
    k_p, k_h = with_spectrum([5.0, 2.0, 1.0]), with_spectrum([4.0, 3.0, 0.5], 1)
    theta = frontier(Spectrum.of(k_p), Spectrum.of(k_h), 3.0) @ random_orthogonal(3, 5)
    assert float(reference.kappa(linear_hessian(theta, k_p))) == pytest.approx(3)


def test_free_directions_make_the_ceiling_infinite_and_the_ridge_finite():
    k_p = torch.diag(torch.tensor([2.0, 1.0, 0.0, 0.0], dtype=F))
    k_h = torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=F))
    primary, harmful = Spectrum.of(k_p), Spectrum.of(k_h)
    assert whiten(primary, harmful).free == harmful.free_directions(primary) == 1
    assert primary.free_directions(harmful) == 0
    assert ceiling(*grams(k_p, k_h)) == math.inf
    damped = ceiling(*grams(k_p, k_h), ridge=0.1)
    assert 1 < damped < math.inf
    assert ceiling(*grams(k_h, k_p)) < math.inf  # range(K_H) inside range(K_P)
    theta = frontier(primary, harmful, 1.0, free_scale=1e-3)
    values = torch.linalg.eigvalsh(linear_hessian(theta, k_h))
    assert float(values[-1] / values[1]) > 1e5
    assert float(torch.linalg.cond(theta)) < 1e6


def test_a_rank_one_harmful_task_leaves_only_the_primary_to_improve():
    k_p = torch.diag(torch.tensor([4.0, 1.0, 0.0], dtype=F))
    for where in range(3):
        k_h = torch.zeros(3, 3, dtype=F)
        k_h[where, where] = 1
        assert ceiling(*grams(k_p, k_h)) == pytest.approx(4)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_the_ceiling_survives_an_ill_conditioned_primary_and_a_low_rank_harmful_task(rank):
    """Forming M drowns its small eigenvalues in rounding amplified by κ(K_P)."""
    mpmath = pytest.importorskip("mpmath")
    k_p = with_spectrum(torch.logspace(0, -9, 8, dtype=F), 1)
    factor = torch.randn(8, rank, dtype=F)
    k_h = factor @ factor.T
    found = ceiling(*grams(k_p, (k_h + k_h.T) / 2))
    with mpmath.workdps(60):
        matrix = mpmath.matrix(k_p.tolist())
        f = mpmath.matrix(factor.tolist())
        mu = mpmath.eigsy(f.T * mpmath.inverse(matrix) * f, eigvals_only=True)
        p = mpmath.eigsy(matrix, eigvals_only=True)
        h = mpmath.eigsy(f.T * f, eigvals_only=True)
        true = (mu[rank - 1] / mu[0]) * (p[7] / p[0]) / (h[rank - 1] / h[0])
    assert found == pytest.approx(float(true), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_ceiling_is_at_least_one_whatever_the_precision_of_the_inputs(dtype):
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        x_p, x_h = (
            torch.randn(200, 6, generator=generator, dtype=F) * torch.logspace(0, s, 6, dtype=F)
            for s in (-1, -4)
        )
        assert ceiling(gram_of(x_p), gram_of(x_h.to(dtype))) >= 1 - 1e-9


def test_the_frontier_under_a_ridge_reaches_the_ridge_ceiling():
    k_p = torch.diag(torch.tensor([2.0, 1.0, 0.0], dtype=F))
    k_h = with_spectrum([3.0, 1.0, 0.0], 2)
    primary, harmful = (damped(g, 0.1) for g in grams(k_p, k_h))
    theta = frontier(primary, harmful, 5.0)
    ratio = reference.kappa(linear_hessian(theta, harmful.matrix)) / reference.kappa(
        linear_hessian(theta, primary.matrix)
    )
    base = primary.condition_number / harmful.condition_number
    assert float(ratio) * base == pytest.approx(ceiling(*grams(k_p, k_h), ridge=0.1))


def test_one_dimension():
    one = torch.ones(1, 1, dtype=F)
    assert ceiling(*grams(one, 3 * one)) == pytest.approx(1)
    assert frontier(Spectrum.of(one), Spectrum.of(3 * one)).shape == (1, 1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda k: frontier(Spectrum.of(k), Spectrum.of(k), 0.5), "at least 1"),
        (lambda k: frontier(Spectrum.of(k), Spectrum.of(k), math.inf), "finite"),
        (lambda k: frontier(Spectrum.of(k), Spectrum.of(k), 2.0, -1.0), "free_scale"),
        (lambda k: frontier(Spectrum.of(k), Spectrum.of(torch.eye(2))), "same features"),
        (lambda k: frontier(Spectrum.of(0 * k), Spectrum.of(k)), "zero"),
        (lambda k: Spectrum.of(k).free_directions(Spectrum.of(torch.eye(2))), "same features"),
        (lambda k: ceiling(*grams(k, k), ridge=-1), "at least 0"),
    ],
)
def test_impossible_requests_are_refused(call, says):
    with pytest.raises(InputError, match=says):
        call(torch.eye(3, dtype=F))


def test_ceiling_reads_real_moments():
    x = torch.randn(200, 4, dtype=F)
    assert ceiling(gram_of(x), gram_of(x * torch.tensor([1.0, 1, 1, 9]))) > 1
