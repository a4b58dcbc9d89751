import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import reference
from helpers.reference import random_orthogonal, with_spectrum
from immunis import InputError, Spectrum
from immunis.theory.frontier import FLOOR, ceiling, ceilings, damped, frontier
from immunis.theory.gram import Gram, gram_of
from immunis.theory.regularizers import linear_hessian

F = torch.float64


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
    assert harmful.free_directions(primary) == 1
    assert primary.free_directions(harmful) == 0
    assert ceiling(*grams(k_p, k_h)) == math.inf
    damped = ceiling(*grams(k_p, k_h), ridge=0.1)
    assert 1 < damped < math.inf
    assert ceiling(*grams(k_h, k_p)) < math.inf  # range(K_H) inside range(K_P)


def factor(rows, columns, generator):
    return torch.randn(rows, columns, generator=generator, dtype=F)


def kappas(theta, *spectra):
    """Return κ of θᵀKθ over as many directions as K has."""
    found = (torch.linalg.eigvalsh(linear_hessian(theta, s.matrix)).flip(0) for s in spectra)
    return [float(v[0] / v[s.rank - 1]) for v, s in zip(found, spectra, strict=True)]


@pytest.mark.parametrize("mixed", [False, True])
@given(st.integers(1, 3), st.integers(1, 2), st.integers(0, 500))
@settings(max_examples=30, deadline=None)
def test_the_frontier_meets_the_shared_ceiling_whatever_the_free_directions(
    mixed, used, free, seed
):
    """Mixed: harmful directions lie across the range of K_P, none is wholly outside it."""
    draw, d = torch.Generator().manual_seed(seed), used + free + 2
    axes = random_orthogonal(d, seed)
    x_p = factor(30, used + 1, draw) @ axes[: used + 1]
    x_h = factor(30, used + 1 if mixed else used + 1 + free, draw)
    x_h = x_h @ factor(x_h.shape[1], used + 1 + free, draw) @ axes[: used + 1 + free]
    primary, harmful = (Spectrum.of(x.T @ x) for x in (x_p, x_h))
    found = ceilings(*grams(primary.matrix, harmful.matrix))
    assert found.free_directions == harmful.free_directions(primary) == free
    base = primary.condition_number / harmful.condition_number
    left = harmful.rank - free  # harmful directions beside the free ones
    reads = axes[: used + 1].T @ torch.linalg.inv(factor(used + 1, used + 1, draw))
    inside = (float(torch.linalg.cond(x @ reads)) ** 2 for x in (x_h, x_p))
    kappa_h, kappa_p = inside  # a map that reads only what the primary task uses
    assert kappa_h / kappa_p * base <= found.shared * (1 + 1e-6)
    for budget, floor in ((1.0, 1.0), (7.0, 1.0), (1.0, FLOOR), (3.0, 0.2)):
        theta = frontier(primary, harmful, budget, floor)
        kappa_p, kappa_h = kappas(theta, primary, harmful)
        assert kappa_p == pytest.approx(budget if left > 1 else 1, rel=1e-6)
        assert kappa_h / budget * base == pytest.approx(found.shared / floor, rel=1e-6)
        assert float(torch.linalg.cond(theta)) < 1e7
    assert found.floored == pytest.approx(found.shared / FLOOR)


def test_no_floor_bounds_what_a_free_direction_gives_unless_it_is_the_only_one():
    k_p = torch.diag(torch.tensor([2.0, 1.0, 0.0, 0.0], dtype=F))
    only = torch.diag(torch.tensor([0.0, 0.0, 3.0, 0.0], dtype=F))
    both = torch.diag(torch.tensor([0.0, 0.0, 3.0, 1.0], dtype=F))
    assert ceilings(*grams(k_p, only)) == (2, 2, 1, 1)
    assert ceilings(*grams(k_p, only)).floored == 2
    assert ceilings(*grams(k_p, both)).rir == math.inf
    for floor in (1.0, 1e-3, 1e-6):
        theta = frontier(Spectrum.of(k_p), Spectrum.of(both), floor=floor)
        assert kappas(theta, Spectrum.of(k_p), Spectrum.of(both)) == pytest.approx([1, 1 / floor])


@given(st.integers(2, 5), st.integers(0, 300))
@settings(max_examples=25, deadline=None)
def test_the_largest_harmful_kappa_at_the_inputs_primary_kappa_is_rir_star(d, seed):
    """Definition 3.1 (a) subject to (b), against random θ that keep (b)."""
    draw = torch.Generator().manual_seed(seed)
    k_p, k_h = (with_spectrum(torch.exp(factor(1, d, draw)[0]), seed + i) for i in (1, 2))
    primary, harmful = Spectrum.of(k_p), Spectrum.of(k_h)
    found = ceilings(*grams(k_p, k_h))
    assert found.harmful == found.rir >= 1 - 1e-9  # θ = I keeps (b) with a factor of 1
    root = torch.linalg.inv(torch.linalg.cholesky(k_p)).T  # rootᵀ K_P root = I
    for _ in range(60):
        turn, _ = torch.linalg.qr(factor(d, d, draw))
        sizes = primary.condition_number ** torch.rand(d, generator=draw, dtype=F)
        kappa_p, kappa_h = kappas(root @ (turn * sizes.sqrt()), primary, harmful)
        assert kappa_p <= primary.condition_number * (1 + 1e-9)
        assert kappa_h / harmful.condition_number <= found.harmful * (1 + 1e-9)
    kappa_p, kappa_h = kappas(
        frontier(primary, harmful, primary.condition_number), primary, harmful
    )
    assert kappa_p == pytest.approx(primary.condition_number, rel=1e-9)
    assert kappa_h / harmful.condition_number == pytest.approx(found.harmful, rel=1e-9)


def test_equal_grams_keep_their_kappa_at_best():
    k = with_spectrum([5.0, 2.0, 1.0])
    spectrum = Spectrum.of(k)
    theta = frontier(spectrum, spectrum, 5.0)
    assert kappas(theta, spectrum, spectrum) == pytest.approx([5, 5])


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
        (lambda k: frontier(Spectrum.of(k), Spectrum.of(k), 2.0, -1.0), "floor"),
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
