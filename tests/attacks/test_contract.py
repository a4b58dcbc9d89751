"""What every attack promises."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit

from helpers.arenas import arena_for, data_for, image_data
from helpers.networks import Residual
from immunis import InputError, Task
from immunis.attacks import ATTACKS
from immunis.attacks.arrays import Data, Samples
from immunis.attacks.contract import NotApplicableError, checkpoints, count_flops
from immunis.attacks.search import search

TUNING = [name for name, attack in ATTACKS.items() if "optimizer" in attack.settings]
ONE = {"optimizer": ["sgd"], "rate": [0.1], "decay": [0.01], "layer_decay": [1.0]}
ONE |= {"smoothing": [0.0], "augment": [False]}  # of a fine-tuning attack's grid
STAGE = {"maps": {"layer": ["stem"]}, "class_token": {"layer": ["blocks.3"]}}  # of several
EACH = [(name, ONE if name in TUNING else STAGE.get(name)) for name in ATTACKS]
WHOLE = [pytest.param(name, None, marks=pytest.mark.slow) for name in TUNING]
every_attack = pytest.mark.parametrize("name", ATTACKS)
every_grid = pytest.mark.parametrize(("name", "only"), [*EACH, *WHOLE])


@functools.cache
def short(name):
    """A short search, what it found, and the model before it."""
    arena = arena_for(ATTACKS[name], budget=20, extraction_flops=100.0)
    before = {k: v.clone() for k, v in arena.cut.model.state_dict().items()}
    return arena, before, search(ATTACKS[name], arena, only=STAGE.get(name))


@every_grid
def test_solves_a_separable_task(name, only):
    outcome = search(ATTACKS[name], arena_for(ATTACKS[name]), only=only)
    best = max(outcome.points, key=lambda p: p.validation)
    assert best.test > 0.9, (name, outcome)


@every_attack
def test_costs_rise_along_the_curve_and_stay_in_budget(name):
    points = short(name)[2].points
    assert points[-1].steps <= 20
    for cost in ("steps", "samples", "flops", "seconds"):
        values = [getattr(p, cost) for p in points]
        assert values == sorted(values), cost
        assert values[-1] > 0, cost


@every_attack
def test_the_same_seed_gives_the_same_curve_and_leaves_the_global_generator_alone(name):
    arena, _, first = short(name)
    torch.manual_seed(5)
    again = search(ATTACKS[name], arena, only=STAGE.get(name))
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert first.settings == again.settings
    for p, q in zip(first.points, again.points, strict=True):
        assert dataclasses.replace(p, seconds=0) == dataclasses.replace(q, seconds=0)


@every_attack
def test_leaves_the_model_alone(name):
    arena, before, _ = short(name)
    for key, value in arena.cut.model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert not arena.cut.model.training


def targets(name, factor, shift):
    def data(seed):
        x, _ = data_for(name)(seed=seed)
        return x, factor * (x.reshape(len(x), -1)[:, :2].astype(np.float64) * 2 + shift)

    return data


@every_grid
def test_regression_works_or_is_refused_in_words(name, only):
    attack = ATTACKS[name]
    arena = arena_for(attack, data=targets(name, 1.0, 1.0), kind="regression")
    if attack.needs_classes:
        with pytest.raises(NotApplicableError, match=f"{name} needs classes"):
            search(attack, arena)
    else:
        assert max(p.test for p in search(attack, arena, only=only).points) > 0.3


@every_grid
def test_the_units_of_regression_targets_do_not_matter(name, only):
    attack, found = ATTACKS[name], []
    for factor in () if attack.needs_classes else (1.0, 1e5):
        data = targets(name, factor, 5.0)
        arena = arena_for(attack, data=data, kind="regression", budget=50)
        found.append(max(p.test for p in search(attack, arena, only=only).points))
    assert found[1:] == pytest.approx(found[:1], abs=0.05)


@pytest.mark.parametrize(
    "name", ["earlier_layer", "concat_blocks", "reinit_last", "distil", "finetune_last"]
)
def test_one_stage_has_no_surgery(name):
    arena = arena_for(ATTACKS[name], model=torch.eye(6))
    with pytest.raises(NotApplicableError, match="one stage"):
        search(ATTACKS[name], arena)


@pytest.mark.parametrize(
    "name", ["drop_last", "invert_last", "pseudo_inverse", "reinit_directions"]
)
def test_features_that_no_linear_layer_makes_cannot_be_undone(name):
    arena = arena_for(ATTACKS[name], model=Residual().eval(), data=image_data)
    with pytest.raises(NotApplicableError, match="linear layer"):
        search(ATTACKS[name], arena)


def test_checkpoints_end_with_the_budget():
    assert checkpoints(1) == [1]
    assert checkpoints(50) == [1, 2, 5, 10, 20, 50]


def test_a_product_costs_two_operations_for_each_number():
    product, flops = count_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 4))
    assert product.shape == (2, 4)
    assert flops == 2 * 2 * 3 * 4


def unequal(ratio, n, rare=None):
    """Two well-separated classes, the first ``ratio`` times as frequent as the second."""
    rare = n // (ratio + 1) if rare is None else rare

    def data(seed):
        rng = np.random.default_rng(seed)
        labels = (np.arange(n) < rare).astype(int)
        x = rng.normal(size=(n, 4)) + 12 * labels[:, None] * np.array([1.0, -1, 0, 0])
        return x.astype(np.float32), labels

    return data


@pytest.mark.parametrize(("ratio", "n"), [(1, 500), (4, 500), (9, 1000), (99, 1000), (1000, 3003)])
@pytest.mark.parametrize("name", ["logistic", "knn"])
def test_rare_classes_are_read_as_scikit_learn_reads_them(name, ratio, n):
    data = unequal(ratio, n)
    (x, y), (z, truth) = data(10), data(11)
    wanted = LogisticRegression().fit(x, y).score(z, truth)
    model = torch.nn.Linear(4, 4).double().eval()
    torch.nn.init.eye_(model.weight)
    outcome = search(ATTACKS[name], arena_for(ATTACKS[name], model=model, data=data))
    assert max(outcome.points, key=lambda p: p.validation).test >= wanted == 1.0


@pytest.mark.parametrize(
    "counts", [(500, 500), (800, 200), (900, 100), (990, 10), (2000, 2), (7, 5, 3, 2, 1)]
)
def test_the_validation_rows_are_stratified(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    data = Data(np.zeros((len(labels), 1), np.float32), labels)
    whole = arena_for(ATTACKS["ridge"])
    seen = np.zeros(len(labels), int)
    for fold in range(5):
        arena = dataclasses.replace(whole, train=data, fold=fold, notes=[])
        fit, held = arena.rows
        assert sorted([*fit, *held]) == list(range(len(labels)))
        seen[held] += 1
        for label, count in enumerate(counts):
            share = (labels[held] == label).sum()
            assert abs(share - count / 5) < 2, "a class has its share of validation rows"
            assert share < count, "and rows to fit on"
        alone = [str(c) for c, count in enumerate(counts) if count == 1]
        assert all("one training row" in note for note in arena.notes)
        assert bool(arena.notes) == bool(alone)
    often = np.array(counts)[labels] > 1
    assert (seen[often] <= 1).all()
    assert seen.sum() >= len(labels) - 5 - (~often).sum()


@pytest.mark.parametrize("counts", [(500, 500), (900, 100), (990, 10), (50, 31, 17, 8, 5)])
def test_the_validation_rows_are_as_those_of_scikit_learn(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    data = Data(np.zeros((len(labels), 1), np.float32), labels)
    arena = dataclasses.replace(arena_for(ATTACKS["ridge"]), train=data)
    theirs = StratifiedKFold(5, shuffle=True, random_state=0).split(labels, labels)
    for fold, (_, wanted) in enumerate(theirs):
        _, held = dataclasses.replace(arena, fold=fold, notes=[]).rows
        ours, usual = (np.bincount(labels[part]) for part in (held, wanted))
        assert np.abs(ours - usual).max() <= 1


@pytest.mark.parametrize("counts", [(4, 4, 4), (20, 1)])
def test_few_rows_of_a_class_that_scikit_learn_refuses_are_split(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    splitter = StratifiedShuffleSplit(1, test_size=0.2) if 1 in counts else StratifiedKFold(5)
    with pytest.raises(ValueError, match=r"least populated class|n_splits=5"):
        list(splitter.split(labels, labels))
    data = Data(np.zeros((len(labels), 1), np.float32), labels)
    fit, held = dataclasses.replace(arena_for(ATTACKS["ridge"]), train=data).rows
    assert set(labels[fit]) == set(labels) and len(held) == len(labels) // 5


def test_one_row_of_each_class_is_fitted_and_validated():
    arena = dataclasses.replace(
        arena_for(ATTACKS["ridge"]), train=Data(np.zeros((4, 1), np.float32), np.arange(4))
    )
    assert [sorted(part) for part in arena.rows] == [[0, 1, 2, 3]] * 2
    assert arena.notes == ["4 class(es) of one training row are never validated"]


def scored_on(labels, kind):
    x = torch.randn(60, 3, dtype=torch.float64)
    y = x[:, 0] if kind == "regression" else (x[:, 0] > 0).long()
    return Task((x, y), (x[: len(labels)], labels), "harm")


@pytest.mark.parametrize(
    ("labels", "kind", "says"),
    [
        (torch.zeros(50, dtype=torch.long), "classification", "50 test rows have one class"),
        (torch.full((50,), 3.0, dtype=torch.float64), "regression", "constant targets"),
        (3 + 1e-14 * torch.arange(50).double(), "regression", "constant targets"),
    ],
)
def test_test_rows_on_which_every_answer_scores_alike_are_refused(labels, kind, says):
    with pytest.raises(InputError, match=says):
        Samples.of(scored_on(labels, kind))


@pytest.mark.parametrize(
    ("labels", "kind", "says"),
    [
        (torch.tensor([0, 1]), "classification", "1 of 2 test rows decide"),
        (torch.tensor([1] + [0] * 49), "classification", "1 of 50 test rows decide"),
        (torch.tensor([0.3, 0.4], dtype=torch.float64), "regression", "2 of 2 test rows decide"),
    ],
)
def test_few_test_rows_that_decide_are_warned_of(labels, kind, says):
    with pytest.warns(UserWarning, match=says):
        Samples.of(scored_on(labels, kind))
