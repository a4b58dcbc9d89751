"""The released loop beside an oracle that is written from the released files alone."""

import dataclasses
from typing import get_args

import pytest
import torch

from helpers.reference import with_spectrum
from helpers.released import extremes, released_run
from immunis.core.errors import InputError, SettingsError
from immunis.paper import released_loop as loop
from immunis.paper.measures import shaken
from immunis.paper.released_pulls import leading_by_eigh, leading_by_squaring

OBJECTIVES = get_args(loop.Objective)
FLOOR = dict.fromkeys(
    ("opt_log_kappa", "opt_kappa_released"), 1e-4
)  # rounding of the oracle's σ_min
HOUSE = loop.Settings()
MNIST = loop.Settings(
    step=1e-3, lambda_primary=1.0, lambda_harmful=5e7, ridge_harmful=1e-7, loss="logistic"
)


def task(seed, count, dimension):
    """Inputs with decaying scales, a constant column, and targets of zeros and ones."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dimension, generator=draw, dtype=torch.float64)
    x = x / torch.arange(1, dimension + 1).sqrt() + torch.linspace(0, 1, dimension)
    x[:, -1] = -0.4242
    return x, (x[:, 0] > 0).double()


def steps_apart(settings, dimension, steps):
    """How far W and b of both lie apart after an epoch, as a share of the way they went."""
    count = settings.batch * settings.processes * steps
    (x_p, y_p), (x_h, y_h) = task(1, count, dimension), task(2, count, dimension)
    rows, start = torch.arange(count), loop.initial(dimension, 3)
    order = loop._order(count, steps, settings, 5)
    assert sorted(order.flatten().tolist()) == list(range(count))
    sides = loop.Side(x_p, [rows], [y_p]), loop.Side(x_h, [rows], [y_h])
    ((_, _, *ours),) = loop.run([start], *sides, settings, (1,), [5])
    batches = [[(x_p[r], y_p[r], x_h[r], y_h[r]) for r in parts] for parts in order]
    theirs = released_run(start, batches, settings)
    pairs = zip(ours, theirs[:2], (start.weight, start.bias), strict=True)
    return [float((a - b).norm() / (b - first).norm()) for a, b, first in pairs]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("steps", [1, 10])
def test_house_prices_in_shape_and_setting(objective, steps):
    settings = dataclasses.replace(HOUSE, objective=objective)
    assert max(steps_apart(settings, 79, steps)) < FLOOR.get(objective, 1e-9)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("steps", [1, 10])
def test_mnist_in_setting(objective, steps):
    """K is the side of an image, not its pixels; a ridge of 1e-7 costs the oracle digits."""
    settings = dataclasses.replace(MNIST, objective=objective, width=14)
    assert max(steps_apart(settings, 14 * 14, steps)) < 2e-4
    settings = dataclasses.replace(settings, ridge_harmful=1.0)
    assert max(steps_apart(settings, 14 * 14, steps)) < FLOOR.get(objective, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_mnist_in_shape_and_setting(objective):
    settings = dataclasses.replace(MNIST, objective=objective, width=28)
    assert max(steps_apart(settings, 784, 10)) < 2e-4


@pytest.mark.parametrize("change", [{"bias": False}, {"processes": 2}, {"width": 3}])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_switch_is_the_oracle_s(objective, change):
    settings = dataclasses.replace(HOUSE, objective=objective, batch=6, **change)
    apart = steps_apart(settings, 12, 4)
    assert max(a for a in apart if a == a) < FLOOR.get(objective, 1e-9)  # b may go no way


def test_the_floor_has_no_gradient_to_speak_of():
    """σ_min of a batch with fewer rows than features is noise, and so is what it pulls."""
    x = task(1, 64, 79)[0]
    w = loop.initial(79, 0).weight.requires_grad_()
    z = x @ w.T
    s = z.T @ z
    low, _ = extremes(s)
    assert low.item() == pytest.approx(1e-6, rel=1e-3)
    with_floor = 1 / (s.norm() ** 2 / (2 * 79) - low**2 / 2)
    without = 2 * 79 / s.norm() ** 2
    both = [torch.autograd.grad(r, w, retain_graph=True)[0] for r in (with_floor, without)]
    assert float((both[0] - both[1]).norm() / both[1].norm()) < 1e-12


@pytest.mark.parametrize("gap", [None, 0.5, 0.99, 0.999])
def test_squaring_finds_what_a_decomposition_finds(gap):
    """None: batches of the oracle. Else σ₂/σ₁; an accelerator squares, a CPU decomposes."""
    if gap is None:
        x, w = task(1, 5 * 64, 79)[0].reshape(5, 64, 79), loop.initial(79, 0)
        z = x @ w.weight.T + w.bias
        small = z @ z.mT
    else:
        small = torch.stack([with_spectrum([3.0, 3.0 * gap, *[0.1] * 62], k) for k in range(5)])
    squared, decomposed = leading_by_squaring(small), leading_by_eigh(small)
    for one, other in zip(squared, decomposed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_a_stack_of_runs_is_the_runs_one_by_one():
    x_p, y_p = task(1, 60, 12)
    x_h, y_h = task(2, 60, 12)
    rows = [torch.arange(60), torch.arange(35), torch.arange(20, 60)]
    starts, seeds = [loop.initial(12, seed) for seed in range(3)], [7, 8, 9]

    def trained(indices):
        sides = [
            loop.Side(x, [rows[i] for i in indices], [y[rows[i]] for i in indices])
            for x, y in ((x_p, y_p), (x_h, y_h))
        ]
        found = loop.run(
            [starts[i] for i in indices], *sides, settings, (1, 3), [seeds[i] for i in indices]
        )
        return {(indices[r], epoch): (w, b) for r, epoch, w, b in found}

    for objective in OBJECTIVES:
        settings = loop.Settings(objective=objective, batch=8)
        alone = {k: v for i in range(3) for k, v in trained([i]).items()}
        together = trained([0, 1, 2])
        assert set(together) == set(alone) == {(r, e) for r in range(3) for e in (1, 3)}
        for key, layer in together.items():
            for ours, theirs in zip(layer, alone[key], strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)
        assert not torch.equal(together[0, 1][0], together[0, 3][0])


def test_a_run_that_diverges_leaves_the_others_alone():
    x, y = task(1, 16, 12)
    side = loop.Side(x, [torch.arange(16)] * 2, [y] * 2)
    good = loop.initial(12, 0)
    bad = good._replace(weight=good.weight * float("inf"))
    for objective in OBJECTIVES:
        settings = loop.Settings(objective=objective, batch=8)
        found = {r: w for r, _, w, _ in loop.run([good, bad], side, side, settings, (2,), [0, 0])}
        assert found[0].isfinite().all() and not found[1].isfinite().all()


def test_rounding_in_the_start_stays_rounding():
    (x_p, y_p), (x_h, y_h) = task(1, 64, 79), task(2, 64, 79)
    first = loop.initial(79, 0)
    second = first._replace(weight=shaken(first.weight, 1))
    rows = [torch.arange(64)] * 2
    sides = loop.Side(x_p, rows, [y_p] * 2), loop.Side(x_h, rows, [y_h] * 2)
    (_, _, a, _), (_, _, b, _) = loop.run([first, second], *sides, HOUSE, (10,), [0, 0])
    assert 0 < float((a - b).norm() / (a - first.weight).norm()) < 1e-11


def test_what_cannot_be_run_is_said():
    x, y = task(1, 40, 12)
    side = loop.Side(x, [torch.arange(40)], [y])
    short = loop.Side(x, [torch.arange(39)], [y[:39]])
    start, settings = [loop.initial(12, 0)], loop.Settings(batch=8)
    with pytest.raises(InputError, match=r"\[40\] primary and \[39\] harmful rows"):
        next(loop.run(start, side, short, settings, (1,), [0]))
    with pytest.raises(InputError, match="at least 1 × 64"):
        next(loop.run(start, side, side, HOUSE, (1,), [0]))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"objective": "r_il"}, "r_ill"),
        ({"step": 0.0}, "step=0.0"),
        ({"ridge_primary": -1.0}, "ridge_primary"),
        ({"lambda_harmful": float("nan")}, "lambda_harmful"),
        ({"batch": 1}, "batch=1"),
        ({"batch": 2.5}, "expected int"),
        ({"width": 0}, "width=0"),
        ({"processes": 0}, "processes=0"),
    ],
)
def test_impossible_settings_are_refused(bad, says):
    with pytest.raises(SettingsError, match=says):
        loop.Settings(**bad)
