"""The development half and the final half of the harmful test rows."""

from dataclasses import replace

import numpy as np
import pytest

from immunis import InputError
from immunis.attacks.arrays import Data, Samples
from immunis.audits.halves import FEWEST, half_of


def samples(rows, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)
    return Samples("classification", 2, Data(x, np.arange(rows) % 2), Data(x, np.arange(rows) % 2))


def in_one_half(final, rare, kind="classification"):
    """400 test rows, of which some rare ones are unlike the others and in one half alone."""
    whole = samples(400)
    half = half_of(whole, final, "task")[0].test.inputs[:rare]
    unlike = (whole.test.inputs[:, None] == half).all(2).any(1)
    labels = unlike.astype(np.int64) if kind == "classification" else unlike[:, None] * 1.0
    train = Data(whole.train.inputs, labels)
    return Samples(kind, 2, train, Data(whole.test.inputs, labels))


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("final", [False, True])
def test_a_half_of_one_class_or_of_constant_targets_is_refused(final, kind):
    said = f"task, {'final' if final else 'development'} half: all .* test rows have"
    with pytest.raises(InputError, match=said):
        half_of(in_one_half(not final, 12, kind), final, "task")


@pytest.mark.parametrize("final", [False, True])
def test_a_half_with_few_rare_rows_is_warned_of(final):
    with pytest.warns(UserWarning, match="half: 9 of .* test rows decide the score"):
        half_of(in_one_half(final, 9), final, "task")


def keys(found):
    return {row.tobytes() for row in found.test.inputs}


def test_every_row_is_in_one_half_with_its_label():
    whole = samples(400)
    parts = {final: half_of(whole, final, "task") for final in (False, True)}
    (dev, said), (last, told) = parts[False], parts[True]
    assert keys(dev) | keys(last) == keys(whole) and not keys(dev) & keys(last)
    assert (said["half"], told["half"]) == ("development", "final")
    assert said["rows"] + told["rows"] == said["of"] == 400
    assert 160 < said["rows"] < 240
    place = {row.tobytes(): label for row, label in zip(*vars(whole.test).values(), strict=True)}
    for part in (dev, last):
        for row, label in zip(part.test.inputs, part.test.labels, strict=True):
            assert place[row.tobytes()] == label
    assert dev.train is whole.train


def test_a_row_never_changes_sides_whatever_the_others_and_their_order():
    whole = samples(600)
    order = np.random.default_rng(1).permutation(600)[:400]
    some = replace(whole, test=Data(whole.test.inputs[order], whole.test.labels[order]))
    wide = replace(whole, test=Data(whole.test.inputs.astype(np.float64), whole.test.labels))
    dev, last = (keys(half_of(whole, final, "t")[0]) for final in (False, True))
    assert keys(half_of(some, False, "t")[0]) <= dev
    assert keys(half_of(some, True, "t")[0]) <= last
    found = half_of(wide, True, "t")[0].test.inputs.astype(np.float32)
    assert {row.tobytes() for row in found} == last


def test_too_few_rows_are_all_for_development_and_no_final_audit():
    few = samples(2 * FEWEST - 1)
    assert half_of(few, False, "task") == (few, {"half": "all", "rows": 99, "of": 99})
    with pytest.raises(InputError, match="task has 99 test rows.*needs 50 rows or more in each"):
        half_of(few, True, "task")
