"""Intervals of accuracies and of their differences, by the rows alone."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from immunis.theory.score_interval import Z, finest, score_interval


def pair(gains, losses, rows):
    """Answers of two models, of which each alone is right on some rows."""
    mine, other = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    mine[:gains], other[gains : gains + losses] = True, True
    return mine, other


def naive(gains, losses, rows):
    """Scan δ and maximise the likelihood under it, where the package solves two equations."""

    def score(delta):
        def likelihood(q):
            terms = ((gains, q + delta), (losses, q), (rows - gains - losses, 1 - 2 * q - delta))
            return -sum(count * math.log(max(share, 1e-300)) for count, share in terms if count)

        span = max(0.0, -delta), (1 - delta) / 2
        q = optimize.minimize_scalar(
            likelihood, bounds=span, method="bounded", options={"xatol": 1e-12}
        ).x
        return abs(gains - losses - rows * delta) / math.sqrt(rows * (2 * q + delta - delta**2))

    inside = [d for d in np.arange(-0.9995, 1, 1e-3) if score(d) <= Z]
    return min(inside), max(inside)


@pytest.mark.parametrize("counts", [(1, 7, 21), (0, 3, 40), (12, 5, 60), (5, 5, 20), (0, 0, 30)])
def test_the_interval_inverts_the_score_test(counts):
    assert score_interval(*pair(*counts)) == pytest.approx(naive(*counts), abs=2e-3)


def test_published_intervals_are_met():
    """Bentur et al. 2009, in Fagerland, Lydersen and Laake 2014; Wilson of 0 of 10."""
    assert score_interval(*pair(1, 7, 21)) == pytest.approx((-0.517, -0.026), abs=5e-4)
    assert score_interval(np.zeros(10)) == pytest.approx((0, 0.2775), abs=1e-4)


@pytest.mark.parametrize("losses", [0, 1, 2, 5, 20, 100])
def test_what_is_excluded_of_losses_is_what_an_exact_poisson_interval_excludes(losses):
    rows = 10**5
    exact = stats.chi2.ppf(0.975, 2 * losses + 2) / 2
    assert -rows * score_interval(*pair(0, losses, rows))[0] == pytest.approx(exact, rel=0.045)


def test_rows_without_a_difference_leave_the_finest_loss():
    for rows in (1, 8, 268, 10**6):
        low, high = score_interval(np.ones(rows), np.ones(rows))
        assert -low == high == pytest.approx(finest(rows), rel=1e-6)
        assert score_interval(np.ones(rows)) == pytest.approx((1 - finest(rows), 1))
    assert score_interval(np.ones(9), np.zeros(9))[1] == 1


def test_copies_of_a_run_add_nothing_and_different_runs_do():
    rng = np.random.default_rng(0)
    runs = rng.random((2, 5, 400)) < 0.5
    one = score_interval(*runs[:, 0])
    assert score_interval(*(np.stack([run[0]] * 5).mean(0) for run in runs)) == one
    many = score_interval(*runs.mean(1))
    assert many[1] - many[0] < 0.6 * (one[1] - one[0])
    alone = score_interval(runs[0].mean(0))
    assert alone[1] - alone[0] < 0.6 * np.ptp(score_interval(runs[0, 0]))
