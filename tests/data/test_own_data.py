"""A user's own data sets: rows that cannot be read, samplers, subsets."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler

from helpers.networks import tasks
from helpers.training import Broken, Plain
from immunis import InputError, Task
from immunis.data.split import Corrupt, Guarded, Split, collate


def test_a_loaders_sampler_says_which_rows_there_are():
    x, y = tasks()[1].train.tensors()
    data = torch.utils.data.TensorDataset(x, y)
    mine = torch.utils.data.SubsetRandomSampler(range(60))
    rows = Task(DataLoader(data, sampler=mine), name="h").train.dataset()[0]
    assert sorted(float(row[0].sum()) for row in rows) == sorted(x[:60].sum((1, 2, 3)).tolist())
    assert len(Task(DataLoader(data, shuffle=True), name="h").train.dataset()[0]) == len(x)
    weighted = torch.utils.data.WeightedRandomSampler(torch.ones(len(x)), 50)
    with pytest.raises(InputError, match=r"cannot follow a WeightedRandomSampler.*Subset"):
        Task(DataLoader(data, sampler=weighted), name="h").train.dataset()


@pytest.mark.parametrize("wrong", [None, (torch.zeros(3, 9, 9), 0)])
def test_samples_that_make_no_batch_are_told(wrong):
    good = (torch.zeros(3, 8, 8), 1)
    with pytest.raises(InputError, match="cannot be joined to a batch.*of one shape"):
        collate([good, wrong])


def test_what_is_the_programs_own_fault_is_raised():
    primary, harmful = tasks()
    with pytest.raises(ZeroDivisionError):
        Task(Broken(harmful, {1}, ZeroDivisionError()), name="harmful", classes=5)


def test_a_data_set_read_many_rows_at_once_is_read_so():
    class AtOnce(Broken):
        asked = 0

        def __getitems__(self, indices):
            self.asked += 1
            return [self[index] for index in indices]

    data = AtOnce(tasks()[0], {3}, OSError("gone"))
    rows = Guarded(data).__getitems__([1, 2])
    assert data.asked == 1 and len(rows) == 2 and len(Guarded(data)) == len(data)
    found = Guarded(data).__getitems__([2, 3])
    assert found[1] == Corrupt("sample 3", "OSError: gone")
    assert found[0][1] == data[2][1]


@pytest.mark.filterwarnings("ignore:.*skipped")
def test_unreadable_rows_are_counted_among_those_drawn():
    data = Broken(tasks()[0], set(range(0, 30, 2)), OSError("gone"))
    some = Subset(data, range(30))
    drawn = DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(range(30)))
    for each in (some, drawn):
        with pytest.raises(InputError, match="of 30 samples cannot be read"):
            Split(each, "x").tensors()


@pytest.mark.filterwarnings("ignore:.*skipped")
def test_the_first_rows_are_as_many_as_asked_for():
    data = Broken(tasks()[0], {0}, OSError("gone"))
    assert torch.equal(Split(data, "x").first(2), data.x[1:3])


def test_subsets_of_one_data_set_are_told_apart_and_keep_its_names():
    data = Plain(tasks()[0])
    data.classes = ["a", "b", "c", "d"]
    parts = [Subset(data, range(20)), Subset(data, range(20, 40)), Subset(data, range(20))]
    first, other, again = (Split(part, "x").identity() for part in parts)
    assert first == again != other
    assert Task(parts[0], name="x").class_names == data.classes


def test_what_workers_ask_of_a_data_set_is_the_users():
    data = Plain(tasks()[0])
    guard = pickle.loads(pickle.dumps(Guarded(data)))
    guard.handle = 3
    assert guard.data.handle == guard.handle == 3
    assert not hasattr(guard, "nothing") and torch.equal(guard.x, data.x)
