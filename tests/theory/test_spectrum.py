import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.reference import with_spectrum
from immunis import InputError, NumericalError, RankWarning, Spectrum, reference_condition_number
from immunis.theory.gram import gram_of
from immunis.theory.regularizers import kappa, r_ill, r_well
from immunis.theory.spectrum import eigh, relative_cutoff

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
    with pytest.raises(InputError, match="moments of a Gram"):
        Spectrum.of(single, center=True)


def test_relative_error_bounds_the_true_error():
    values = [1.0, 1e-4, 1e-9]
    s = Spectrum.of(with_spectrum(values))
    assert abs(s.condition_number / 1e9 - 1) < s.relative_error < 1e-5


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


def test_centring_reaches_the_spectrum():
    x = torch.randn(100, 3, dtype=torch.float64) + 50
    assert Spectrum.of(gram_of(x), center=True).condition_number < 3
    assert Spectrum.of(gram_of(x)).condition_number > 1000


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_released_kappa_is_a_noise_floor(scale):
    """THEORY: on rank-deficient input it reports about σ_max/1e-6, whatever the conditioning.

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
