"""Spectra, and on an accelerator both of their ends by matrix products, against ``eigh``."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.fuzzing import eigenvalues, exact
from helpers.reference import with_spectrum
from immunis import (
    InputError,
    NumericalError,
    RankWarning,
    Spectrum,
    Task,
    gram,
    reference_condition_number,
)
from immunis.theory import regularizers as r
from immunis.theory.gram import as_extractor, gram_of
from immunis.theory.regularizers import kappa, r_ill, r_well
from immunis.theory.spectrum import (
    SQUARINGS,
    TURNS,
    eigh,
    leading_projector,
    null_projector,
    relative_cutoff,
    squared,
    trace,
    trailing_projector,
)

spectra = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8)


def test_hand_computed_two_by_two():
    s = Spectrum.of(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    assert s.eigenvalues.tolist() == pytest.approx([3, 1])
    assert s.condition_number == pytest.approx(3)


def test_one_by_one_and_repeated():
    assert Spectrum.of(torch.tensor([[7.0]])).condition_number == 1
    assert Spectrum.of(torch.eye(5)).condition_number == pytest.approx(1)


@given(spectra, st.floats(-60, 60), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_kappa_is_invariant_to_scale_and_rotation(values, exponent, seed):
    plain = Spectrum.of(torch.diag(torch.tensor(values, dtype=torch.float64)))
    moved = Spectrum.of(with_spectrum(values, seed) * 10.0**exponent)
    assert moved.rank == plain.rank
    tolerance = 10 * plain.relative_error + 1e-12
    assert moved.condition_number == pytest.approx(plain.condition_number, rel=tolerance)


@pytest.mark.parametrize("scale", [1e-60, 1e-30, 1.0, 1e30, 1e60])
@pytest.mark.parametrize("rank", [1, 3, 6])
def test_rank_is_found_at_any_scale(scale, rank):
    values = [10.0**-i for i in range(rank)] + [0.0] * (6 - rank)
    s = Spectrum.of(with_spectrum(values) * scale)
    assert s.rank == rank
    assert s.condition_number == pytest.approx(10.0 ** (rank - 1), rel=1e-6)


def test_zero_matrix_has_rank_zero_and_no_kappa():
    s = Spectrum.of(torch.zeros(3, 3))
    assert s.rank == 0
    with pytest.raises(InputError, match="zero"):
        _ = s.condition_number


def test_the_cutoff_knows_the_precision_of_the_inputs():
    x = torch.randn(2000, 4, dtype=torch.float64)
    x[:, 3] = x[:, :3].sum(1)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        assert Spectrum.of(gram_of(x.to(dtype))).rank == 3, dtype
    assert relative_cutoff(4, torch.finfo(torch.bfloat16).eps) == 2.0**-14


def test_the_cutoff_knows_the_precision_of_a_bare_matrix():
    x = torch.randn(500, 10)
    x[:, 9] = x[:, :9].sum(1)
    single = x.T @ x
    s = Spectrum.of(single)
    assert s.rank == 9
    honest = Spectrum.of(gram_of(x)).condition_number
    assert s.condition_number == pytest.approx(honest, rel=1e-3)
    assert Spectrum.of(single.numpy()).rank == 9


def test_relative_error_bounds_the_true_error():
    values = [1.0, 1e-4, 1e-9]
    s = Spectrum.of(with_spectrum(values))
    assert abs(s.condition_number / 1e9 - 1) < s.relative_error < 1e-5


def test_relative_error_includes_the_rounding_of_stored_features():
    rng, exceeded, told = np.random.default_rng(0), 0, 0
    for case in range(1500):
        d = int(rng.integers(1, 6))
        x = rng.normal(size=(d + int(rng.integers(0, 12)), d)) * 10.0 ** -rng.uniform(0, 3, d)
        x += rng.choice([0.0, 1.0, 100.0])
        dtype = (torch.float32, torch.bfloat16, torch.float64)[case % 3 if case % 2 else 0]
        found = Spectrum.of(gram_of(torch.from_numpy(x).to(dtype)))
        values = eigenvalues(exact(torch.from_numpy(x)).T * exact(torch.from_numpy(x)))
        true = values[0] / values[found.rank - 1]  # of the features before they were stored
        error = abs(found.condition_number - true)
        exceeded += error > found.relative_error * min(true, found.condition_number)
        told += found.relative_error < 1
    assert exceeded == 0
    assert told > 900  # a bound, not infinity


WAYS = {
    "tensor": lambda x, theta: gram(x, as_extractor(theta)),
    "layer": lambda x, theta: gram(x, as_extractor(layer_of(theta))),
    "task": lambda x, theta: gram(Task((x, torch.arange(len(x)) % 2)), as_extractor(theta)),
    "transformed": lambda x, theta: gram(x).transform(theta),
    "twice": lambda x, theta: gram(x).transform(theta).transform(torch.eye(theta.shape[1])),
}


def layer_of(theta):
    layer = torch.nn.Linear(*theta.shape, bias=False, dtype=theta.dtype)
    layer.weight.data = theta.T.contiguous()
    return layer


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relative_error_includes_the_rounding_of_inputs_before_a_linear_map(way, dtype):
    rng, exceeded, told = np.random.default_rng(1), 0, 0
    for case in range(120):
        d = int(rng.integers(2, 6))
        k = min(d - 1, 3)
        x = rng.normal(size=(30, d)) * 10.0 ** -rng.uniform(0, 3, d)
        theta = rng.normal(size=(d, k))
        if case % 3:  # a common part, which θ cancels
            x += rng.choice([1.0, 1e2, 1e4]) * rng.normal(size=(30, 1))
            theta -= theta.mean(0)
        x, theta = torch.from_numpy(x), torch.from_numpy(theta)
        found = Spectrum.of(WAYS[way](x.to(dtype), theta))
        if found.rank < k:
            continue
        z = exact(x) * exact(theta)
        values = eigenvalues(z.T * z)
        true = values[0] / values[k - 1]
        error = abs(found.condition_number - true)
        exceeded += error > found.relative_error * min(true, found.condition_number)
        told += found.relative_error < 1
    assert exceeded == 0
    assert told > 75


def test_fewer_samples_than_dimensions_are_said():
    with pytest.warns(RankWarning, match="5 samples in 8 dimensions.*at least 8"):
        Spectrum.of(gram_of(torch.randn(5, 8)))


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (torch.ones(2, 3), "square"),
        (torch.tensor([[1.0, 2.0], [0.0, 1.0]]), "not symmetric"),
        (torch.diag(torch.tensor([1.0, -1.0])), "negative eigenvalue"),
        (torch.diag(torch.tensor([1.0, float("nan")])), "NaN"),
        (torch.zeros(0, 0), "expected a matrix"),
    ],
)
def test_what_is_no_gram_matrix_is_refused(matrix, says):
    with pytest.raises(InputError, match=says):
        Spectrum.of(matrix)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_released_kappa_is_a_noise_floor(scale):
    """On rank-deficient input it reports about σ_max/1e-6, whatever the conditioning.

    Unless rounding, which differs between processors, makes every zero eigenvalue negative.
    """
    floor, honest = 0, torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    for seed in range(40):
        matrix = scale * with_spectrum(honest, seed)
        assert Spectrum.of(matrix).condition_number == pytest.approx(4)
        released = reference_condition_number(matrix)
        noise = released == pytest.approx(4e6 * scale, rel=0.01)
        assert noise or released == pytest.approx(4, rel=1e-4)
        floor += noise
    assert floor > 10  # chance makes it 30
    assert reference_condition_number(torch.diag(honest[:4])) == pytest.approx(4, rel=1e-5)


def test_the_released_kappa_refuses_what_it_cannot_use():
    with pytest.raises(InputError, match="square"):
        reference_condition_number(torch.ones(2, 3))
    with pytest.raises(InputError, match="NaN"):
        reference_condition_number(torch.full((2, 2), float("nan")))
    with pytest.raises(InputError, match="no eigenvalue exceeds"):
        reference_condition_number(torch.zeros(2, 2))


def test_decomposing_nan_is_a_numerical_error():
    with pytest.raises(NumericalError, match="diverged"):
        eigh(torch.full((2, 2), float("nan")))


HALF = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize(("dtype", "d"), [(torch.bfloat16, 13), (torch.float16, 103)])
def test_a_matrix_too_wide_for_its_precision_is_refused(dtype, d):
    for call in (Spectrum.of, kappa, r_ill):
        call(torch.eye(d - 1, dtype=dtype))
        with pytest.raises(InputError, match=f"{d} dimensions in {dtype}"):
            call(torch.eye(d, dtype=dtype))
    wide = torch.diag(torch.linspace(1, 2, 200)).to(dtype)  # R_well needs no rank
    expected = float(r_well(wide.double()))
    assert float(r_well(wide)) == pytest.approx(expected, rel=torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("d", [5, 12])
def test_half_precision_does_not_hide_what_is_no_gram_matrix(dtype, d):
    torch.manual_seed(0)
    with pytest.raises(InputError, match="not symmetric"):
        Spectrum.of(torch.randn(d, d).to(dtype))
    with pytest.raises(InputError, match="negative eigenvalue"):
        Spectrum.of(-torch.eye(d, dtype=dtype))


def matrix(values, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (len(values), len(values))
    basis = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64))[0]
    return basis * torch.tensor(values, dtype=torch.float64) @ basis.T


@pytest.mark.parametrize("scale", [1e-150, 1e-3, 1.0, 1e150])
def test_both_ends_agree_with_eigh(scale):
    s = matrix(np.logspace(0, -6, 24)) * scale
    values, vectors = eigh(s)
    for (value, projector, *_), at in ((leading_projector(s), 0), (trailing_projector(s), -1)):
        assert float(value / values[at]) == pytest.approx(1, rel=1e-9)
        wanted = torch.outer(vectors[:, at], vectors[:, at])
        assert torch.allclose(projector, wanted, atol=1e-8)


def test_ties_are_averaged():
    s = torch.diag(torch.tensor([4.0, 4.0, 2.0, 1.0, 1.0]))
    assert leading_projector(s)[1].diagonal().tolist() == pytest.approx([0.5, 0.5, 0, 0, 0])
    assert trailing_projector(s)[1].diagonal().tolist() == pytest.approx([0, 0, 0, 0.5, 0.5])


def test_a_stack_is_squared_like_its_matrices():
    z = torch.randn(5, 6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    s = z @ z.mT
    stack = squared(s / trace(s), turns=10)
    for each, projector in zip(s, stack, strict=True):
        first = torch.linalg.eigh(each)[1][:, -1]
        assert torch.allclose(projector, torch.outer(first, first), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.9, 1 - 1e-12))
def test_the_bound_holds_whatever_the_gap(second):
    s = matrix([1.0, second, 0.5, 0.1])
    value, projector = leading_projector(s)
    residual = float((s @ projector - value * projector).norm())
    assert residual <= 4 / (math.e * 2 ** (TURNS * SQUARINGS)) + 1e-12


def test_what_rounding_decides_is_left_to_eigh():
    assert trailing_projector(torch.zeros(3, 3)) is None
    assert trailing_projector(matrix([1.0, 2e-15])) is None
    assert trailing_projector(matrix([1.0, 0.5, 3e-16, 1e-15])) is None
    assert float(trailing_projector(torch.ones(1, 1)).smallest) == 1.0


def dead_units():
    z = torch.randn(200, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[:, [3, 17, 39]] = 0.0
    return z * torch.logspace(0, -3, 40, dtype=torch.float64)


def normalised():  # the plane that LayerNorm maps to, in float32 as a network gives it
    z = torch.randn(400, 48, generator=torch.Generator().manual_seed(1))
    return torch.nn.functional.layer_norm(z, (48,)).double()


def low_rank():
    generator = torch.Generator().manual_seed(2)
    factors = (torch.randn(*shape, generator=generator) for shape in ((300, 9), (9, 30)))
    return torch.linalg.multi_dot([f.double() for f in factors])


@pytest.mark.parametrize(("features", "rank"), [(dead_units, 37), (normalised, 47), (low_rank, 9)])
def test_a_null_space_is_lifted_out_of_the_way(features, rank):
    z = features()
    s = z.T @ z / len(z)
    values, vectors = eigh(s)
    end = trailing_projector(s)
    assert end.rank == rank == int((values > relative_cutoff(len(s)) * values[0]).sum())
    assert float(end.smallest / values[rank - 1]) == pytest.approx(1, rel=1e-6)
    wanted = torch.outer(vectors[:, rank - 1], vectors[:, rank - 1])
    assert torch.allclose(end.bottom, wanted, atol=1e-5)
    for fast, slow in (
        (r._ill_of(s, *end), r._ill(s)),
        (r._kappa_of(*leading_projector(s), *end[:2]), r._kappa(s)),
    ):
        assert torch.allclose(fast[0], slow[0], rtol=1e-6)
        assert torch.allclose(fast[1], slow[1], atol=1e-4 * float(slow[1].abs().max()))


def test_ones_have_rank_one():
    end = trailing_projector(torch.ones(3, 3))
    assert end.rank == 1
    assert float(end.smallest) == pytest.approx(3)
    assert torch.allclose(end.bottom, torch.full((3, 3), 1 / 3, dtype=torch.float64))


def test_purification_projects_on_what_lies_below_a_cut_off():
    values = [1.0, 1e-2, 1e-4, 1e-9, 1e-12, 0.0]
    s = matrix(values)
    null = null_projector(s, torch.tensor(1e-6, dtype=torch.float64))
    vectors = eigh(s)[1][:, 3:]
    assert torch.allclose(null, vectors @ vectors.T, atol=1e-9)
    assert null_projector(s, torch.tensor(1e-9, dtype=torch.float64)) is None  # one lies on it
