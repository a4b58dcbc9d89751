"""Several harmful tasks as one."""

import pytest
import torch

from helpers.networks import image_task, small_net, tasks
from helpers.training import Broken, Plain
from immunis import InputError, Task, immunize
from immunis.data.several_tasks import together


def both(lazy=False):
    found = image_task(60, 3, seed=1, name="one"), image_task(40, 2, seed=2, name="two")
    if lazy:
        return tuple(Task(Plain(t), t.test.tensors(), t.name, classes=t.outputs) for t in found)
    return found


@pytest.mark.parametrize("lazy", [False, True])
def test_rows_keep_their_inputs_and_have_classes_of_their_own(lazy):
    one, two = both(lazy)
    task = together([one, two])
    assert task.name == "one + two" and task.outputs == 5 and task.train.in_memory is not lazy
    assert task.class_names == ["one: 0", "one: 1", "one: 2", "two: 0", "two: 1"]
    inputs, labels = task.train.tensors()
    for part, start, rows in ((one, 0, slice(60)), (two, 3, slice(60, 100))):
        x, y = part.train.tensors()
        assert torch.equal(inputs[rows], x) and torch.equal(labels[rows], y + start)
    assert task.test.tensors()[1].tolist() == [
        *one.test.tensors()[1].tolist(), *(3 + two.test.tensors()[1]).tolist(),
    ]  # fmt: skip


def test_one_task_is_itself_and_samples_that_cannot_be_read_stay_so():
    one, two = both()
    assert together([one]) is one
    spoiled = Task(Broken(one, {5}, OSError("torn")), name="one", classes=3)
    with pytest.warns(UserWarning, match="skipped"):
        assert len(together([spoiled, Task(Plain(two), name="two")]).train.tensors()[0]) == 99


def test_tasks_that_do_not_fit_are_named():
    one, _ = both()
    flat = Task((torch.randn(20, 5), torch.arange(20) % 2), name="flat")
    real = Task((one.train.tensors()[0], torch.randn(60)), name="real")
    with pytest.raises(InputError, match=r"flat is a classification of inputs \(5,\)"):
        together([one, flat])
    with pytest.raises(InputError, match="real is a regression"):
        together([one, real])
    with pytest.raises(InputError, match="no task came"):
        together([])


def test_a_network_is_defended_against_several_tasks_at_once():
    training = {"steps": 6, "batch": 32, "harmful_batch": 80, "evaluate": 1}
    result = immunize(small_net(), tasks()[0], both(), weight=3.0, training=training)
    assert result.record.data["harmful"]["name"] == "one + two"
    with pytest.raises(InputError, match="no task came"):
        immunize(small_net(), tasks()[0], [])
