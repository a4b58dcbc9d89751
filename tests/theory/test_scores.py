import math

import pytest
import torch

from immunis import NumericalError, Task
from immunis.theory.scores import answers, score

F = torch.float64


def test_score_is_accuracy_or_r_squared():
    x = torch.randn(30, 2, dtype=F)
    classes = Task((x, (x[:, 0] > 0).long() * 4))
    for sign, right in ((1, 1.0), (-1, 0.0)):
        found = answers(lambda z, s=sign: torch.stack([-s * z[:, 0], s * z[:, 0]], 1), classes)
        assert score(*found, "classification") == right
    values = Task((x, x[:, 0]))
    found = answers(lambda z: z[:, :1], values)
    assert score(*found, "regression") == pytest.approx(1)
    mean = torch.full_like(found[0], float(found[1].mean()))
    assert score(mean, found[1], "regression") == pytest.approx(0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_not_finite_score_as_the_worst_answer(bad):
    predictions = torch.tensor([[0.0, 1.0], [0.0, bad]])
    assert score(predictions, torch.tensor([1, 1]), "classification") == 0
    assert score(predictions, predictions.nan_to_num(), "regression") == -math.inf
    with pytest.raises(NumericalError, match="predicts NaN"):
        answers(lambda x: predictions, Task((torch.ones(2, 1), torch.tensor([0, 1]))))


def test_r_squared_of_constant_targets_is_one_or_minus_infinity():
    ones = torch.ones(3, 1, dtype=F)
    assert score(ones, ones[:, 0], "regression") == 1
    assert score(ones + 1e-9, ones, "regression") == -math.inf


@pytest.mark.parametrize("size", [1e-300, 1.0, 1e300])
def test_r_squared_knows_no_unit(size):
    y = size * torch.tensor([[1.0], [2.0], [4.0]], dtype=F)
    assert score(torch.full_like(y, 2 * size), y, "regression") == pytest.approx(1 - 5 / (14 / 3))
    assert score(1e308 * torch.ones_like(y), -1e308 * y / size, "regression") == -math.inf
