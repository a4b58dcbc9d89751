"""Which rows an attacker has."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.arenas import arena_for, separable
from immunis.attacks import ATTACKS
from immunis.attacks.arrays import Data
from immunis.attacks.sampling import PARTS, sample
from immunis.attacks.search import search

LABELS = np.repeat([0, 1, 2], [100, 40, 11])


def left_out(draw, labels=LABELS, kind="classification"):
    return set(range(len(labels))) - set(sample(labels, kind, draw).tolist())


def test_five_attackers_leave_out_every_row_once_and_the_next_five_other_fifths():
    parts = [left_out(draw) for draw in range(2 * PARTS)]
    assert {len(part) for part in parts} == {30} and len({*map(frozenset, parts)}) == 10
    for turn in (parts[:5], parts[5:]):
        assert len(set().union(*turn)) == 150
    assert left_out(None) == set()
    assert left_out(3) == left_out(3)


def test_every_class_gives_a_fifth_and_a_class_of_few_rows_keeps_one():
    for draw in range(PARTS):
        counts = np.bincount(LABELS[sample(LABELS, "classification", draw)])
        assert np.abs(counts - 0.8 * np.array([100, 40, 11])).max() <= 1
        rare = np.array([0] * 20 + [1] * 2 + [2])
        assert set(rare[sample(rare, "classification", draw)]) == {0, 1, 2}


@pytest.mark.parametrize("labels", [np.arange(2), np.array([0, 0, 1, 1])])
def test_tiny_samples_are_kept_whole(labels):
    assert all(not left_out(draw, labels) for draw in range(PARTS))


def test_targets_are_drawn_too():
    targets = np.random.default_rng(0).normal(size=(53, 2))
    parts = [left_out(draw, targets, "regression") for draw in range(PARTS)]
    assert {len(part) for part in parts} == {10} and len(set().union(*parts)) == 50


@pytest.mark.parametrize("name", ["ridge", "knn", "finetune_all", "renormalise", "harmless_first"])
def test_no_attack_looks_at_rows_that_its_sample_leaves_out(name):
    """Labels of other rows are wrong: nothing changes."""
    arena = arena_for(ATTACKS[name], budget=10, draw=1)
    labels, found = arena.train.labels, []
    lost = np.setdiff1d(np.arange(len(labels)), arena.own)
    assert len(lost) == 30 and not set(lost) & set(np.concatenate(arena.rows))
    for wrong in (0, 1):
        told = np.where(np.isin(np.arange(len(labels)), lost), (labels + wrong) % 3, labels)
        other = replace(arena, train=Data(arena.train.inputs, told))
        found.append([(p.validation, p.test) for p in search(ATTACKS[name], other).points])
    assert found[0] == found[1]


def test_attackers_of_different_samples_reach_different_scores():
    def noisy(seed):
        x, y = separable(60, seed)
        return x + 6 * np.random.default_rng(seed).normal(size=x.shape).astype(np.float32), y

    reached = {
        search(ATTACKS["ridge"], arena_for(ATTACKS["ridge"], data=noisy, seed=s, draw=s))
        .points[-1]
        .test
        for s in range(PARTS)
    }
    assert len(reached) > 1
