"""Probes that train side by side find what each finds alone."""

import dataclasses

import numpy as np
import pytest
import torch

from helpers.arenas import IMAGES, arena_for, image_data, separable
from immunis.attacks import ATTACKS
from immunis.attacks.learning import train_linear, train_linears
from immunis.attacks.search import curves, search, space_of

TOGETHER = [name for name, attack in ATTACKS.items() if attack.together is not None]

ADAM = 1e-3  # it divides by the size of a gradient, so rounding shows where that is small


def several_batches(seed):
    """More rows than a batch: over all rows the gradient of a bias is zero but for rounding."""
    return separable(400, seed)


def uneven(seed):
    """Separable clusters, some rows far longer than the others: every basis is offered."""
    x, y = separable(seed=seed)
    return x * np.where(np.arange(len(x)) % 10, 1, 50)[:, None].astype(np.float32), y


def choices_of(name, arena):
    space = space_of(ATTACKS[name], arena)
    grids = np.meshgrid(*[np.arange(len(v)) for v in space.values()], indexing="ij")
    return [
        {n: space[n][i] for n, i in zip(space, place, strict=True)}
        for place in zip(*(grid.ravel() for grid in grids), strict=True)
    ]


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_settings_run_together_give_what_each_gives_alone(name, kind):
    def data(seed):
        x, y = uneven(seed) if ATTACKS[name].closed_form else several_batches(seed)
        if name in IMAGES:
            x, y = image_data(400, seed)
        values = x.reshape(len(x), -1)[:, :2].astype(np.float64)
        return (x, y) if kind == "classification" else (x, values)

    arena = arena_for(ATTACKS[name], budget=30, data=data, kind=kind)
    choices = choices_of(name, arena)
    assert len(choices) > 2 or (name, kind) == ("kernel", "regression")
    close = ADAM if name == "adam" else 1e-5
    both = curves(ATTACKS[name], arena, choices)
    alone = [curves(ATTACKS[name], arena, [each])[0] for each in choices]
    for one, other in zip(both, alone, strict=True):
        for p, q in zip(one, other, strict=True):
            assert (p.steps, p.samples) == (q.steps, q.samples)
            assert p.flops == pytest.approx(q.flops)
            assert p.validation == pytest.approx(q.validation, rel=1e-4, abs=close)
            assert p.test == pytest.approx(q.test, rel=1e-4, abs=close)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_linear_probes_side_by_side_are_plain_linear_probes(kind):
    def data(seed):
        x, y = several_batches(seed)
        return (x, y) if kind == "classification" else (x, x[:, :2].astype(np.float64))

    features = arena_for(ATTACKS["adam"], budget=30, data=data, kind=kind).features().scaled()
    for optimizer, options in ((torch.optim.Adam, {}), (torch.optim.SGD, {"momentum": 0.9})):
        rates = (0.01, 1e30, 0.001)  # one that diverges leaves the others alone
        side_by_side = zip(*train_linears(features, rates, optimizer, **options), strict=True)
        found = [[step.scores() for step in steps] for steps in side_by_side]
        for place, rate in enumerate(rates):
            plain = list(train_linear(features, rate, optimizer=optimizer, **options))
            assert found[place][-1][:2] == pytest.approx(plain[-1].scores()[:2], abs=ADAM)


def test_an_attack_in_one_batch_is_searched_like_any_other():
    """The search of ``ridge``, one setting at a time, chooses and scores the same."""
    attack = ATTACKS["ridge"]

    def run(arena, settings):
        ((step,),) = attack.together(arena, [settings])
        return [step]

    arena = arena_for(attack, data=uneven)
    one = search(attack, arena)
    other = search(dataclasses.replace(attack, run=run, together=None), arena)
    assert one.settings == other.settings
    assert one.points[0].test == other.points[0].test
    assert one.costs == other.costs and one.trials == other.trials
