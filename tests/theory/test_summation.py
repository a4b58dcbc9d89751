"""Sums of any length: the error of a Gram does not grow with the number of rows."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from immunis import RankWarning, Task, gram, measure
from immunis.theory.gram import gram_of, gram_of_blocks
from immunis.theory.probes import rho_of_gram
from immunis.theory.spectrum import Spectrum, quiet_spectrum
from immunis.theory.summation import ROWS, add_gram, add_products

U = 2.0**-53


def collinear(rows, seed):
    """Columns a and 3a of whole numbers below 2³⁰: rank one, exactly."""
    a = np.random.default_rng(seed).integers(0, 2**30, rows).astype(float)
    return torch.from_numpy(np.stack([a, 3 * a], 1))


def test_collinear_columns_have_rank_one_whatever_the_rows():
    for seed in range(60):
        found = quiet_spectrum(gram(collinear(100_000, seed)))
        assert (found.rank, found.condition_number) == (1, 1.0)
        assert abs(float(found.eigenvalues[1])) < U * found.largest
    task = Task((collinear(100_000, 0), torch.arange(100_000) % 2))
    with pytest.warns(RankWarning, match="rank 1 of 2"):
        assert measure(task, task).ceiling == pytest.approx(1)


@pytest.mark.parametrize("rows", [10**6, pytest.param(10**7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch", [64, 10**6])
def test_long_streams_keep_the_rank(rows, batch):
    rng = np.random.default_rng(rows)

    def blocks():  # a, 3a, two coins (whose rounding is always to one side), and their sum
        for _ in range(rows // 10**6):
            a, b, c = (rng.integers(0, high, 10**6).astype(float) for high in (2**30, 2, 2))
            columns = np.stack([a, 3 * a, 1e9 * b, 1e9 * c, 1e9 * (b + c)], 1)
            few = columns[: 10**6 if batch > 64 else 64_000]  # small batches of a share of them
            yield from ((part, None) for part in torch.from_numpy(few).split(batch))

    found = quiet_spectrum(gram_of_blocks(blocks()))
    assert found.rank == 3
    assert float(found.eigenvalues[3:].abs().max()) < 5 * U * found.largest


@pytest.mark.slow
@pytest.mark.parametrize("least", [0, 2**29])
def test_rows_one_by_one_keep_the_rank(least):
    a = np.random.default_rng(0).integers(least, 2**30, blocks := 30_000)
    x = torch.from_numpy(np.stack([a, 3 * a], 1).astype(float))
    total = gram_of(x[:1])
    for row in x[1:].split(1):
        total.add(row)
    found = quiet_spectrum(total)
    assert found.rank == 1
    assert abs(float(found.eigenvalues[1])) < U * found.largest
    error = Fraction(float(total.matrix()[0, 0])) - sum(int(value) ** 2 for value in a)
    assert abs(error) <= 2 * blocks * U * blocks * float(a.mean()) ** 2


def test_a_million_distinct_integers_sum_to_the_exact_moments():
    rows, rng = 10**6, np.random.default_rng(0)
    x = rng.integers(0, 2**30, (rows, 3))
    found = gram_of(torch.from_numpy(x))
    low, high = x % 2**15, x // 2**15  # sums of their products fit 64 bits
    parts = [(low, low, 0), (low, high, 15), (high, low, 15), (high, high, 30)]
    sums, matrix = [int(value) for value in x.sum(0)], found.matrix()
    for i in range(3):
        for j in range(3):
            raw = sum(int(one[:, i] @ two[:, j]) << shift for one, two, shift in parts)
            spread = raw - Fraction(sums[i] * sums[j], rows)
            size = float(found.scatter[i, i] * found.scatter[j, j]) ** 0.5
            assert abs(Fraction(float(found.scatter[i, j])) - spread) <= 4 * U * size
            assert abs(Fraction(float(matrix[i, j])) - raw) <= 8 * U * raw


@settings(deadline=None, max_examples=60)
@given(
    rows=st.sampled_from([1, 7, 300, ROWS, 2 * ROWS + 5]),
    tail=st.sampled_from([0.0, 1.0, 8.0]),
    scale=st.integers(-30, 30),
    seed=st.integers(0, 2**31),
)
def test_a_sum_is_exact_to_the_stated_bound(rows, tail, scale, seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(rows, 2)) * np.exp(tail * rng.normal(size=(rows, 2))) * 2.0**scale
    zeros = [torch.zeros(2, 2, dtype=torch.float64) for _ in range(4)]
    (high, low), (cross, rest) = zeros[:2], zeros[2:]
    for part in torch.from_numpy(z).split(997):
        add_gram(high, low, part)
        add_products(cross, rest, part, part.flip(1))
    whole = [[Fraction(v) for v in column] for column in z.T.tolist()]
    sizes = [sum(v * v for v in column) for column in whole]
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        true = sum(a * b for a, b in zip(whole[i], whole[j], strict=True))
        norm = float(sizes[i] * sizes[j]) ** 0.5
        for total, more in ((high[i, j], low[i, j]), (cross[i, 1 - j], rest[i, 1 - j])):
            assert abs(Fraction(float(total)) - true) <= 1.13 * U * norm
            assert abs(Fraction(float(total)) + Fraction(float(more)) - true) <= 0.13 * U * norm


def test_moments_of_labels_and_rho_know_no_number_of_rows():
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.normal(size=(4, columns))) for columns in (3, 2))
    few, times = gram_of(x, y), 250_000  # plain sums are off by 140,000 U
    many = gram_of(x.repeat(times, 1), y.repeat(times, 1))
    sizes = few.scatter.diagonal().sqrt(), few.target_scatter.diagonal().sqrt()
    off = (many.cross_scatter / times - few.cross_scatter) / torch.outer(*sizes)
    assert float(off.abs().max()) < 20 * U
    off = (many.target_scatter / times - few.target_scatter) / torch.outer(sizes[1], sizes[1])
    assert float(off.abs().max()) < 20 * U
    assert rho_of_gram(many) == pytest.approx(rho_of_gram(few), rel=1e-13)


def test_wide_sums_are_worked_on_in_strips(monkeypatch):
    z = torch.randn(50, 7, dtype=torch.float64)
    whole, parts = ([torch.zeros(7, 7, dtype=torch.float64) for _ in "hl"] for _ in "ab")
    add_gram(*whole, z)
    monkeypatch.setattr("immunis.theory.summation.STRIP", 15)
    add_gram(*parts, z)
    torch.testing.assert_close(whole[0], parts[0], rtol=4 * U, atol=1e-30)


def test_a_negative_eigenvalue_of_rounding_size_is_the_noise_it_shows():
    matrix = torch.diag(torch.tensor([1.0, 2e-12, -1e-11], dtype=torch.float64))
    assert Spectrum.of(matrix).rank == 1
