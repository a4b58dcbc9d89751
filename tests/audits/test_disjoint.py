"""What an audit says of rows that the attacker shares with the defence, or that lie near to it."""

import warnings

import numpy as np
import pytest
import torch

from immunis import InputError, Task
from immunis.audits.disjoint import disjoint_rows


def task(x, name="attacker", test=None):
    parts = [None if p is None else (torch.as_tensor(p), np.arange(len(p)) % 2) for p in (x, test)]
    return Task(*parts, name=name)


def table(rng, rows):
    """Eight columns of yes or no, and an age: rows of few values."""
    yes = rng.random((rows, 8)) < 0.3
    return np.concatenate([yes, rng.integers(18, 70, (rows, 1))], axis=1).astype(float)


def quiet(*tasks):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return disjoint_rows(*tasks)


@pytest.mark.parametrize("sizes", [(500, 200, 1000), (1000, None, 1000), (100, 100, 2000)])
def test_rows_of_few_values_that_are_equal_by_chance_are_warned_of(sizes):
    rng = np.random.default_rng(0)
    train, test, seen = (None if n is None else table(rng, n) for n in sizes)
    with pytest.warns(UserWarning, match="repeats rows as often") as told:
        found = disjoint_rows(task(train, test=test), task(seen, "primary"), None)
    assert found["shared"] > 0 and len(told) == 1


def test_rows_of_few_values_that_were_copied_are_refused():
    rng = np.random.default_rng(0)
    mine, seen = table(rng, 500), table(rng, 500)
    mine[:300] = seen[:300]
    with pytest.raises(InputError, match=r"3\d\d sample.*\(3\d\d in the training data of primary"):
        disjoint_rows(task(mine), task(seen, "primary"), None)


def test_the_record_says_what_was_compared_and_how_near_it_lies():
    x = np.random.default_rng(0).normal(size=(700, 6))
    found = quiet(task(x[:200], test=x[200:300]), task(x[300:500], "P"), task(x[500:]))
    names = ["the attacker's training data", "the attacker's test data"]
    names += ["the training data of P", "the defender's sample"]
    assert found["compared"]["sets"] == names
    assert found["compared"]["rows"] == [200, 100, 200, 200]
    assert found["nearest"]["sets"][0] in names[:2] and found["nearest"]["sets"][1] in names[2:]


@pytest.mark.parametrize("change", [lambda x: x.round(4), lambda x: 3 * x + 7])
def test_changed_copies_are_warned_of_and_named(change):
    x = np.random.default_rng(0).normal(size=(600, 6))
    mine = change(np.concatenate([x[:100], x[400:]]))
    with pytest.warns(UserWarning, match="of attacker lie much nearer to the training data of P"):
        assert disjoint_rows(task(mine), task(x[:400], "P"), None)["nearest"]["suspicious"]


def test_texts_have_no_distances():
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(1, 1000, (120, 7)))
    x = torch.stack([ids, torch.ones_like(ids)], 1)
    assert quiet(task(x[:60]), task(x[60:]), None)["nearest"] is None


def test_sets_of_a_row_or_two_are_compared_for_copies_alone():
    x = np.random.default_rng(0).normal(size=(12, 3))
    assert quiet(task(x[:10]), task(x[10:]), None)["nearest"] is None
