"""The terms of probe that are formulas of features."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from helpers.networks import tasks
from helpers.training import SHORT, objective, run, whole
from immunis import NumericalError, SettingsError
from immunis.methods.probe import hold, keep, total_variance
from immunis.theory.rho import recalled, rho
from immunis.training.loop import fit
from immunis.training.objective import View, supervised_only
from immunis.training.settings import Training


def held_view(after, before):
    return SimpleNamespace(primary={"": after}, teacher=(None, before))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_hold_measures_each_direction_by_what_is_left_of_it(scale):
    before = torch.linalg.qr(torch.randn(40, 5, dtype=torch.float64))[0] * scale
    shrink = torch.diag(torch.tensor([1.0, 1, 1, 1, 0.01], dtype=torch.float64))
    after = before @ shrink
    assert torch.allclose(hold(held_view(after, before)), torch.tensor(99.0**2 / 5).double())
    mixing = torch.randn(5, 5, dtype=torch.float64)  # a map of both changes nothing
    found = hold(held_view(after @ mixing, before @ mixing))
    assert torch.allclose(found, torch.tensor(99.0**2 / 5).double(), rtol=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_hold_bounds_how_far_eigenvalues_have_fallen(seed):
    torch.manual_seed(seed)
    before = torch.randn(60, 6, dtype=torch.float64) * torch.logspace(0, -3, 6)
    after = before @ torch.randn(6, 6, dtype=torch.float64) + 0.1 * torch.randn(60, 6)
    value = float(hold(held_view(after, before)))
    now, then = (torch.linalg.eigvalsh(z.T @ z) for z in (after, before))
    assert bool((then <= now * (1 + (6 * value) ** 0.5) ** 2 * (1 + 1e-6)).all())


@pytest.mark.parametrize("growth", [1.0, 1e6])
def test_a_direction_that_grows_does_not_let_others_shrink(growth):
    before = torch.linalg.qr(torch.randn(40, 4, dtype=torch.float64))[0]
    after = before @ torch.diag(torch.tensor([growth, 1e-2, 1e-2, 1e-2]).double())
    assert float(hold(held_view(after, before))) > 0.99 * 3 * 99**2 / 4
    gone = torch.zeros_like(before).requires_grad_()
    hold(held_view(gone, before)).backward()
    assert bool(gone.grad.isfinite().all())


def test_hold_has_the_gradient_of_its_formula():
    before = torch.randn(20, 3, dtype=torch.float64)
    after = (before + 0.3 * torch.randn(20, 3)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: hold(held_view(z, before)), (after,))


def test_hold_says_what_it_needs():
    with pytest.raises(SettingsError, match="4 primary rows for 4 features"):
        hold(held_view(torch.ones(4, 4), torch.ones(4, 4)))
    with pytest.raises(NumericalError, match="NaN"):
        hold(held_view(torch.full((9, 2), torch.nan), torch.ones(9, 2)))
    dead = torch.zeros(9, 2)
    assert float(hold(held_view(dead, dead))) == 0


def test_probe_hides_the_harmful_labels_and_keeps_the_primary_task():
    primary, harmful = tasks()
    pre = Training(layers=["*"], epochs=6, batch=32, rate=1e-2, batchnorm="update")
    trained = fit(whole(), supervised_only(), primary, None, pre).model
    training = Training(steps=60, batch=64, harmful_batch=135, rate=1e-2, tolerance=0.1)
    result = fit(whole(trained), objective("probe"), primary, harmful, training)
    first, best = result.history[0], min(result.history[1:], key=lambda row: row["rho"])
    assert best["rho"] < first["rho"] / 2
    assert best["primary"] > 0.8


def test_collapse_draws_harmful_features_together():
    z = torch.randn(50, 3) + 5
    assert torch.allclose(total_variance(z), z.double().var(0, correction=0).sum())
    primary, harmful = tasks()

    def spread(model):
        parts = (whole(model).features(task.train.first(60)) for task in (harmful, primary))
        return float(torch.stack([total_variance(part) for part in parts]).log().diff())

    with_, without = (run("probe", settings={"collapse": c}).model for c in (3.0, 0.0))
    assert spread(with_) > spread(without) + 0.2  # primary over harmful


def test_keep_holds_the_primary_features_where_they_were():
    primary, _ = tasks()
    start, inputs = whole(), primary.train.first(60)

    def distance(model):
        before, after = (part.features(inputs) for part in (start, whole(model)))
        view = SimpleNamespace(primary={"": after}, teacher=(None, before))
        expected = (after - before).square().sum() / (before - before.mean(0)).square().sum()
        assert torch.allclose(keep(view), expected, rtol=1e-4)  # it damps by a millionth
        return float(expected)

    kept, free = (run("probe", settings={"keep": k}).model for k in (10.0, 0.0))
    assert distance(start.model) == 0
    assert 0 < distance(kept) < distance(free) / 2


def test_recall_hides_what_the_original_says_of_the_labels():
    start, inputs = whole(), tasks()[1].train.first(120)
    labels = torch.nn.functional.one_hot(torch.arange(120) % 5, 5).double()
    told = recalled(start.features(inputs), labels)[:, 5:]

    def left(recall):
        training = dataclasses.replace(SHORT, steps=40, evaluate=1, tolerance=1.0)
        model = run("probe", training, settings={"recall": recall, "weight": 30.0}).model
        return float(rho(whole(model).features(inputs).detach(), told))

    assert float(rho(start.features(inputs).detach(), told)) > 0.95
    assert left(True) < left(False) - 0.05


@pytest.mark.parametrize("lift", [0, 16])
def test_even_rows_are_part_of_the_loss(lift):
    draws = torch.Generator().manual_seed(9)
    labels = torch.arange(400) % 2
    z = torch.randn(400, 8, generator=draws)
    z[:, 0] += 3.0 * (2 * labels - 1)
    z *= 10 ** (4 * torch.rand(400, 1, generator=draws))  # a few long rows hide the rest
    targets = torch.nn.functional.one_hot(labels, 2).double()
    view = View(torch.randn(4, 2), torch.arange(4) % 2, {"": z[:4]}, {"": z}, targets)
    given = {"lift": lift, "distillation": 0.0, "weight": 3.0}
    plain, evened = objective("probe", **given), objective("probe", even=True, **given)
    found = evened.terms(view)
    new = found.keys() - plain.terms(view).keys()
    assert new == {"rho_even"} | ({"rho_even_lifted"} if lift else set())
    assert found["rho_even"] > found["rho"] + 0.2
    assert all(evened.weights[name] == 3.0 for name in new)
    assert not new & plain.weights.keys()  # what is not in the loss has no weight
    nearby = objective("probe", near=7.0, **given)
    found = nearby.terms(view)
    assert found.keys() - plain.terms(view).keys() == {"near"} and nearby.weights["near"] == 7.0
    assert found["near"] > 0.3
    still = dataclasses.replace(view, harmful={"": 1e-7 * view.harmful[""].sign()})
    assert nearby.terms(still)["near"] < 1e-3  # below the floor
    other = torch.randn(200, 8, generator=draws).repeat_interleave(2, 0)  # neighbours that differ
    apart = dataclasses.replace(view, harmful={"": other})
    assert nearby.terms(apart)["near"] == 0


def test_more_depths_than_a_model_has_are_refused():
    with pytest.raises(SettingsError, match="depths=99: the model has . stages"):
        run("probe", settings={"depths": 99})


def test_hold_lets_no_direction_of_the_primary_features_shrink():
    primary, _ = tasks()
    start, inputs = whole(), primary.train.first(60)

    def value(model):
        before, after = (part.features(inputs).detach() for part in (start, whole(model)))
        return float(hold(held_view(after, before)))

    held, free = (run("probe", settings={"hold": h}).model for h in (10.0, 0.0))
    assert value(start.model) == 0
    assert 0 < value(held) < value(free) / 2
