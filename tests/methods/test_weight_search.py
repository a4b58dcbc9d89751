"""The search for the largest weight that the primary score allows."""

import math
import warnings
from types import SimpleNamespace

import pytest
import torch

from immunis.methods.weight_search import NONE_KEPT, strongest, unresolved
from immunis.theory.scores import score_of
from immunis.training.paired import fall, least_score

ROWS, TOLERANCE = 1000, 0.005


def fit_of(weight, hits, reference, read):
    """A finished training whose evaluation was judged as the loop judges it."""
    row = {"step": 5, "primary": score_of(hits), "probe": read, "noise": 0.01}
    row |= {"depths": {}, "chance": 0.0}
    kept = reference is None or not row["primary"] < least_score(reference, hits, TOLERANCE)
    return SimpleNamespace(
        history=[row], best_step=5, kept=kept, notes=[], weight=weight, hits=hits
    )


def attempts(kept, read):
    """An attempt keeps the score up to a weight, and probes read a function of the weight."""
    tried = []

    def attempt(weight, reference):
        tried.append((weight, reference))
        share = 0.9 if weight <= kept else 0.5
        return fit_of(weight, torch.arange(ROWS) < share * ROWS, reference, read(weight))

    return attempt, tried


def search(attempt):
    return strongest(attempt, lambda fit: fit.hits, TOLERANCE)


def falling(weight):
    return 0.8 / (1 + weight)


@pytest.mark.parametrize(
    ("kept", "weights", "chosen"),
    [
        (10.0, [0, 3, 9, 27, math.sqrt(243)], 9.0),
        (16.0, [0, 3, 9, 27, math.sqrt(243)], math.sqrt(243)),
        (4.0, [0, 3, 9, math.sqrt(27)], 3.0),
        (0.5, [0, 3, 1, 1 / 3, math.sqrt(1 / 3)], 1 / 3),
        (2.0, [0, 3, 1, math.sqrt(3)], math.sqrt(3)),
        (1e9, [0, 3, 9, 27, 81], 81.0),
    ],
)
def test_it_goes_up_or_down_and_then_tries_one_between(kept, weights, chosen):
    attempt, tried = attempts(kept, falling)
    weight, fit, plain, said = search(attempt)
    assert weight == pytest.approx(chosen) and fit.weight == weight and plain.weight == 0
    assert [w for w, _ in tried] == pytest.approx(weights)
    assert tried[0][1] is None  # the plain training's answers are those to keep
    assert all(score_of(reference) == 0.9 for _, reference in tried[1:])
    assert [row["weight"] for row in said["weights_tried"]] == pytest.approx(weights)
    assert said["primary_to_keep"] == 0.9


def test_it_stops_where_a_larger_weight_hides_no_more_than_noise():
    attempt, tried = attempts(1e9, lambda weight: max(0.1, 0.5 - 0.1 * weight))
    assert search(attempt)[0] == 9.0 and [w for w, _ in tried] == [0, 3, 9, 27]
    attempt, tried = attempts(1e9, lambda weight: 0.3 - 0.001 * weight if weight else 0.8)
    assert search(attempt)[0] == 3.0 and [w for w, _ in tried] == [0, 3, 9]


def test_if_no_weight_keeps_the_score_the_smallest_counts_and_says_so():
    attempt, _ = attempts(0.0, falling)
    with pytest.warns(UserWarning, match="no weight kept"):
        weight, fit, _, said = search(attempt)
    assert weight == pytest.approx(1 / 9) and fit.notes[0] == NONE_KEPT
    assert not any(row["kept"] for row in said["weights_tried"][1:])


def test_a_fall_is_told_row_by_row():
    one = torch.arange(100) < 90
    assert fall(one, one) == (0.0, 0.0)
    assert fall(one, one.flip(0)) == pytest.approx((0.0, math.sqrt(0.2 / 99)))
    lost, error = fall(one, torch.arange(100) < 80)
    assert (lost, error) == pytest.approx((0.1, math.sqrt(0.09 / 99)))
    errors = torch.rand(50, dtype=torch.float64)  # of targets: R² is one minus their sum
    assert fall(errors, errors + 0.01) == pytest.approx((0.5, 0.0), abs=1e-9)
    assert least_score(one, one, 0.02) == pytest.approx(0.88)


def test_too_few_rows_for_the_tolerance_are_told_with_how_many_it_takes():
    row = torch.arange(100) < 90
    assert "takes some 200 rows" in unresolved(row, row, 0.005)  # half a row
    assert unresolved(row, row, 0.02) == unresolved(row, row.flip(0), 0.0) == ""
    says = unresolved(row, row.flip(0), 0.01)
    assert "100 held-out primary rows" in says and "takes some 2,021 rows" in says


def ends(rows, seed, paired):
    """Where a search ends for a defence that costs nothing: answers differ by luck alone."""
    draws = torch.Generator().manual_seed(seed)

    def attempt(weight, reference):
        hits = torch.rand(rows, generator=draws) < 0.947  # a standard deviation of √(0.05/n)
        fit = fit_of(weight, hits, reference, falling(weight))
        if not paired:  # as a bare comparison of scores has it
            fit.kept = reference is None or score_of(hits) >= score_of(reference) - TOLERANCE
        return fit

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return search(attempt)[0]


def test_a_defence_that_costs_nothing_is_seldom_given_up_for_luck():
    def lowest(paired):
        return sum(ends(100, seed, paired) < 0.2 for seed in range(300)) / 300

    assert lowest(paired=False) > 0.08 > 0.03 > lowest(paired=True)
