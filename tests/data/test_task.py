"""A task: its kind, classes and targets."""

import pytest
import torch

from immunis import InputError, Task

X, Y = torch.randn(8, 3), torch.arange(8) % 2


def test_labels_decide_the_kind_and_are_encoded():
    x = torch.randn(6, 2)
    classes = Task((x, torch.tensor([5, 9, 5, 9, 7, 7])))
    assert (classes.kind, classes.classes, classes.outputs) == ("classification", (5, 7, 9), 3)
    assert classes.targets(torch.tensor([9, 5])).tolist() == [[0, 0, 1], [1, 0, 0]]
    values = Task((x, torch.randn(6, 2)))
    assert (values.kind, values.outputs) == ("regression", 2)
    assert Task((x, torch.tensor([True, False] * 3))).classes == (0, 1)


def test_test_data_must_fit_the_training_data():
    with pytest.raises(InputError, match="must agree"):
        Task((X, Y), (X[:, :2], Y))
    with pytest.raises(InputError, match="both as integers"):
        Task((X, Y), (X, Y.float()))
    task = Task((X, Y), (X, Y + 1))
    with pytest.raises(InputError, match="label 2 is not among"):
        task.positions(Y + 1)


def test_quantities_given_as_integers_are_questioned():
    task = Task((torch.randn(200, 2), torch.arange(200) * 1000))
    with pytest.warns(UserWarning, match="pass them as floats"):
        assert len(task.classes) == 200


def test_class_count_can_be_given_to_spare_a_pass():
    assert Task((X, Y), classes=4).outputs == 4
    with pytest.raises(InputError, match="labels are floats"):
        Task((X, X[:, 0]), classes=4)
    for bad in (0, -1, "a"):
        with pytest.raises(InputError, match="at least 1"):
            Task((X, Y), classes=bad)
