import pytest
import torch

from helpers import reference
from helpers.tasks import make_task
from immunis import InputError, gram, norm_ratio_curve
from immunis.theory.descent import line_search
from immunis.theory.gram import gram_of

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
