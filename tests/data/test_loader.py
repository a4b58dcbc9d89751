"""Batches by step number: the same for every run, process and resumption."""

import pytest
import torch

from immunis import Task
from immunis.data.loader import Stream, ahead, held_out, spread


def task(n=10):
    return Task((torch.arange(n)[:, None].float(), torch.arange(n) % 2), name="rows")


def test_every_row_comes_once_an_epoch():
    stream = Stream(task(), 3, seed=4)
    seen = torch.cat([stream.rows_at(step) for step in range(10)])
    assert len(seen) == 30
    assert seen.bincount().tolist() == [3] * 10
    assert stream.epoch == 4


def test_a_step_depends_on_its_number_alone():
    fresh, used = Stream(task(), 4, seed=1), Stream(task(), 4, seed=1)
    for step in range(7):
        used.rows_at(step)
    assert torch.equal(fresh.rows_at(6), used.rows_at(6))
    assert not torch.equal(fresh.rows_at(6), Stream(task(), 4, seed=2).rows_at(6))


def test_batches_go_on_from_any_step():
    stream = Stream(task(), 4, seed=1)
    whole = [x.flatten().tolist() for x, _ in stream.batches(0, 8)]
    assert [x.flatten().tolist() for x, _ in stream.batches(5, 8)] == whole[5:]


def test_a_batch_larger_than_the_data_is_all_of_it():
    assert sorted(Stream(task(), 99).rows_at(3).tolist()) == list(range(10))


def test_working_ahead_keeps_the_order_stops_in_time_and_passes_errors_on():
    begun = []

    def half(value):
        begun.append(value)
        return 8 // value

    assert list(ahead(half, [1, 2, 4])) == [8, 4, 2]
    begun.clear()
    some = ahead(half, iter([1, 2, 4, 8, 3]))
    assert next(some) == 8
    some.close()
    assert set(begun) <= {1, 2}
    some = ahead(half, [1, 2, 0, 4])
    assert [next(some), next(some)] == [8, 4]
    with pytest.raises(ZeroDivisionError):
        next(some)
    assert list(ahead(half, [])) == []


def test_held_out_rows_are_the_same_every_time():
    train, held = held_out(100, 0.1)
    assert len(held) == 10
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(100))
    assert torch.equal(held, held_out(100, 0.1)[1])


def test_spread_rows_reach_both_ends():
    assert spread(torch.arange(100), 3).tolist() == [0, 50, 99]
    assert spread(torch.arange(4), 9).tolist() == [0, 1, 2, 3]
