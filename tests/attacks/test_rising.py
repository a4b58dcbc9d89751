"""Curves that had not settled are told from those that had."""

import pytest

from immunis.attacks.rising import still_rising


@pytest.mark.parametrize(
    ("scores", "rising"),
    [
        ([0.1, 0.4, 0.6, 0.7, 0.8], True),
        ([0.1, 0.7, 0.8, 0.8, 0.8], False),
        ([0.1, 0.7, 0.8, 0.801, 0.804], False),  # within the noise
        ([0.1, 0.9, 0.8, 0.7, 0.85], False),  # it was better before
        ([0.3], False),
    ],
)
def test_a_curve_rises_if_its_last_third_gains_more_than_half_a_point(scores, rising):
    steps = [1, 10, 100, 600, 1000][: len(scores)]
    curve = [{"steps": s, "validation": v} for s, v in zip(steps, scores, strict=True)]
    assert still_rising(curve) is rising


def test_noisier_scores_must_gain_more():
    curve = [{"steps": 100, "validation": 0.80}, {"steps": 200, "validation": 0.82}]
    assert still_rising(curve)
    assert not still_rising(curve, noise=0.03)
