import pytest
import torch

from helpers import reference
from immunis import InputError, NumericalError, extremes, gram
from immunis import extremes as exported
from immunis.theory.extremes import TOLERANCE

F = torch.float64


@pytest.mark.parametrize("d", [1, 2, 3, 60])
@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_both_ends_equal_the_full_decomposition_within_the_bound(d, size):
    matrix = size * reference.with_spectrum(torch.logspace(0, -5, d, dtype=F))
    found, values = extremes(matrix), torch.linalg.eigvalsh(matrix)
    assert abs(found.largest - float(values[-1])) <= found.largest_error
    assert abs(found.smallest - float(values[0])) <= found.smallest_error
    assert found.largest_error <= (d * 2.0**-52 + 10 * TOLERANCE) * found.largest
    assert found.smallest_error <= 4 * d * 2.0**-52 * found.largest
    kappa = float(values[-1] / values[0])
    assert abs(found.condition_number / kappa - 1) <= found.relative_error + 1e-15
    for value, vector in ((found.largest, found.leading), (found.smallest, found.trailing)):
        torch.testing.assert_close(
            matrix @ vector, value * vector, rtol=0, atol=2 * found.largest_error
        )


def test_repeated_ends_are_no_trouble():
    found = extremes(reference.with_spectrum([3.0, 3, 3, 2, 1, 1]))
    assert found.largest == pytest.approx(3, rel=1e-12)
    assert found.smallest == pytest.approx(1, rel=1e-12)


def test_a_streamed_gram_is_read():
    x = torch.randn(200, 8, dtype=F)
    found = extremes(gram(x))
    assert found.condition_number == pytest.approx(float(torch.linalg.cond(x)) ** 2, rel=1e-9)


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (torch.ones(4, 4, dtype=F), "singular to working precision"),
        (torch.zeros(4, 4, dtype=F), "singular to working precision"),
        (reference.with_spectrum([1.0, 0.5, 1e-17]), "singular to working precision"),
        (torch.tensor([[2.0, 1.0], [0.0, 2.0]]), "not symmetric"),
        (torch.ones(2, 3), "square"),
    ],
)
def test_what_it_does_not_hold_for_is_refused(matrix, says):
    with pytest.raises(InputError, match=says):
        exported(matrix)


@pytest.mark.parametrize("low", [1e-10, 1e-12])
def test_the_bound_of_a_tiny_smallest_eigenvalue_says_something(low):
    d = 300
    values = torch.cat([torch.linspace(1, 0.5, d - 1, dtype=F), torch.tensor([low], dtype=F)])
    found = extremes(reference.with_spectrum(values))
    assert abs(found.smallest - low) <= found.smallest_error
    assert found.smallest_error < 3 * d * 2.0**-52  # not the tolerance of the iterations
    assert found.relative_error < 0.2


def test_a_bound_that_reaches_zero_is_refused(monkeypatch):
    module = __import__("sys").modules["immunis.extremes"]
    monkeypatch.setattr(module, "_residual", lambda k, value, vector: float(value))
    with pytest.raises(InputError, match="singular to working precision"):
        extremes(torch.diag(torch.tensor([5.0, 4.0, 1.0], dtype=F)))


def test_a_missed_eigenvalue_is_noticed(monkeypatch):
    matrix = torch.diag(torch.tensor([5.0, 4.0, 1.0], dtype=F))
    module = __import__("sys").modules["immunis.extremes"]
    wrong = torch.tensor([0.0, 1.0, 0.0], dtype=F)
    monkeypatch.setattr(module, "_lanczos", lambda k, product: (wrong @ k @ wrong, wrong))
    with pytest.raises(NumericalError, match="missed"):
        extremes(matrix)


def test_nan_is_refused():
    with pytest.raises(NumericalError, match="NaN"):
        extremes(torch.full((2, 2), torch.nan))
