import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers import reference
from helpers.reference import eigenvalues_after_ill_step, random_orthogonal, with_spectrum
from helpers.tasks import make_task
from immunis import InputError, gram, norm_ratio_curve
from immunis.theory.gram import gram_of
from immunis.theory.regularizers import ill_gap, linear_hessian, r_ill_gradient, r_well_gradient
from immunis.theory.steps import (
    certified_ill_step,
    certified_well_factors,
    certified_well_step,
    eigenvalues_after_well_step,
    ill_steps,
    line_search,
    well_steps,
)

F = torch.float64


def test_line_search_equals_the_naive_one():
    z, y = torch.randn(40, 4, dtype=F), torch.randn(40, 2, dtype=F)
    path = line_search(z.T @ z, z.T @ y)
    for expected in reference.exact_line_search(z, y, 20):
        torch.testing.assert_close(next(path), expected)


def test_line_search_obeys_its_convergence_bound():
    """‖w_t−w*‖_H falls by ((κ−1)/(κ+1)) a step or faster (Luenberger)."""
    z, y = torch.randn(60, 4, dtype=F) * torch.tensor([1.0, 2, 4, 8]), torch.randn(60, 1, dtype=F)
    h, b = z.T @ z, z.T @ y
    best, kappa = torch.linalg.solve(h, b), float(torch.linalg.cond(h))
    path, gap = line_search(h, b), None
    for _ in range(50):
        error = next(path) - best
        energy = float((error * (h @ error)).sum())
        if gap is not None and gap > 1e-18:
            assert energy <= gap * ((kappa - 1) / (kappa + 1)) ** 2 * (1 + 1e-6) + 1e-18
        gap = energy


def test_line_search_stays_at_the_optimum_and_takes_a_start():
    h, b = torch.eye(2, dtype=F), torch.ones(2, 1, dtype=F)
    path = line_search(h, b, start=torch.ones(2, 1, dtype=F))
    assert torch.equal(next(path), next(path))
    zero = line_search(torch.zeros(2, 2, dtype=F), torch.zeros(2, 1, dtype=F))
    assert torch.equal(next(zero), next(zero))


def test_norm_ratio_starts_at_one_falls_and_is_slower_where_kappa_is_larger():
    easy, hard = (make_task(200, scales=torch.logspace(0, s, 5).numpy()) for s in (0, 2))
    a, b = (norm_ratio_curve(gram(task), 50) for task in (easy, hard))
    assert len(a) == 51
    assert float(a[0]) == float(b[0]) == 1
    assert float(a[-1]) < 1e-3 < float(b[-1])
    one_step = norm_ratio_curve(gram_of(reference.random_orthogonal(4), torch.randn(4, 1)), 1)
    assert float(one_step[1]) < 1e-20


def test_norm_ratio_ignores_directions_without_data(quiet_rank):
    x, y = torch.randn(30, 3, dtype=F), torch.randn(30, 1, dtype=F)
    padded = torch.cat([x, torch.zeros(30, 2, dtype=F)], 1)
    torch.testing.assert_close(
        norm_ratio_curve(gram_of(padded, y), 20), norm_ratio_curve(gram_of(x, y), 20)
    )
    with pytest.raises(InputError, match="orthogonal"):
        norm_ratio_curve(gram_of(x, 0 * y), 5)


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


# Where the paper's printed statements fail (docs/errata.md).


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


@given(spectra, st.floats(0.01, 1), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_theorem_4_3_holds_with_the_bounds_of_the_errata(values, share, extra):
    sigma = torch.tensor(sorted(values, reverse=True), dtype=F)
    k, d = len(sigma), len(sigma) + extra
    assume(k > 1 and sigma[0] > 1.01 * sigma[1] and sigma[-2] > 1.01 * sigma[-1])
    s1, s2 = sigma[:2].sqrt().tolist()
    step = share * (s1 - s2) / (2 * ((1 - 1 / d) * s1**3 + s2**3 / d))
    assert kappa_of(eigenvalues_after_well_step(sigma, step, d)) < kappa_of(sigma)
    bound = 1 / ((1 - 2 / k) * float(sigma[-1])) if k > 2 else 10.0
    step = 0.999 * share * bound * float(ill_gap(sigma)) ** 2
    assert kappa_of(eigenvalues_after_ill_step(sigma, step)) > kappa_of(sigma)


@pytest.mark.parametrize("bad", [torch.tensor([1.0, 0.0]), torch.tensor([]), torch.tensor([-1.0])])
def test_steps_need_positive_eigenvalues(bad):
    with pytest.raises(InputError, match="positive"):
        well_steps(bad, 3)
    with pytest.raises(InputError, match="fraction"):
        certified_ill_step(torch.tensor([2.0, 1.0]), 1.0)
