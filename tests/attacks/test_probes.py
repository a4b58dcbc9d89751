"""Known answers of the probes."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from helpers.arenas import arena_for, curve, separable
from helpers.tasks import make_task
from immunis import Task, gram, immunize
from immunis.attacks import ATTACKS
from immunis.attacks.probes.kernel import RIDGES
from immunis.attacks.search import search, space_of
from immunis.theory.logistic import logistic
from immunis.theory.probes import ridge_probe, ridges_of
from immunis.theory.scores import score

F = torch.float64
LINEAR = ("gd_line_search", "gd_constant", "sgd", "adam", "lbfgs", "ridge", "logistic")
LINEAR += ("standardise", "whiten", "batchnorm_probe", "reparameterise")


def test_ridge_equals_the_normal_equations():
    arena = arena_for(ATTACKS["ridge"])
    features = arena.features()
    z, y = features.z.double(), features.targets()
    ones = torch.cat([z, torch.ones(len(z), 1, dtype=F)], 1)
    expected = torch.linalg.lstsq(ones, y).solution
    found = curve(ATTACKS["ridge"], arena, {"ridge": 1e-12, "basis": "given"})
    test, labels = features.parts["test"]
    predicted = torch.cat([test.double(), torch.ones(len(test), 1, dtype=F)], 1) @ expected
    assert found[0].test == score(predicted, labels, "classification")


def test_lbfgs_equals_ridge_at_the_optimum():
    def values(seed):
        x, _ = separable(seed=seed)
        rng = np.random.default_rng(seed)
        return x, x[:, :1].astype(np.float64) + rng.normal(size=(len(x), 1))

    arena = arena_for(ATTACKS["lbfgs"], data=values, kind="regression")
    features = arena.features().scaled()
    penalty = 1e-2  # of the mean squared error: λ = penalty·n in the sum
    found = curve(ATTACKS["lbfgs"], arena, {"rate": 1.0, "penalty": penalty})[-1]
    moments = gram(Task((features.z.double(), features.y)))
    relative = penalty * features.samples / float(moments.scatter.diagonal().mean())
    weights, bias = ridge_probe(moments, relative)
    expected = features.scores(lambda z: z.double() @ weights + bias)
    assert found.test == pytest.approx(expected[1], abs=1e-4)


def test_descent_reaches_what_ridge_reaches():
    arena = arena_for(ATTACKS["gd_line_search"], budget=5000)
    ridge = curve(ATTACKS["ridge"], arena, {"ridge": 1e-9, "basis": "given"})[0].test
    for name, settings in (
        ("gd_line_search", {"bias": True}),
        ("gd_constant", {"rate": 1.9}),
        ("whiten", {"ridge": 0.0}),
    ):
        assert curve(ATTACKS[name], arena, settings)[-1].test == pytest.approx(ridge, abs=0.02)


def test_whitening_undoes_a_conditioning_defence_exactly():
    primary = make_task(200, d=6, seed=1, name="p")
    harmful = make_task(200, d=6, seed=2, name="h", shift=0.3)

    def data(seed):
        x, y = make_task(300, d=6, seed=2, shift=0.3).train.tensors()
        rows = slice(0, 150) if seed == 10 else slice(150, None)
        return x[rows].numpy(), y[rows].numpy()

    curves = []
    for model in (
        torch.eye(6, dtype=F),
        immunize(torch.eye(6, dtype=F), primary, harmful, "frontier"),
    ):
        arena = arena_for(ATTACKS["whiten"], model=model, data=data, budget=20)
        curves.append(curve(ATTACKS["whiten"], arena, {"ridge": 0.0}))
    for a, b in zip(*curves, strict=True):
        assert (a.steps, a.validation, a.test) == (b.steps, b.validation, b.test)


@pytest.mark.parametrize("name", LINEAR)
def test_full_erasure_holds_every_linear_probe_at_chance_on_the_training_distribution(name):
    x, y = separable(600)
    task = Task((x.astype(np.float64), y), name="h")
    erased = immunize(torch.eye(6, dtype=F), task, task, "erase", strength=0.0).model

    def data(seed):  # attacker and test see the very sample the erasure was fitted on
        return x.astype(np.float64), y

    arena = arena_for(ATTACKS[name], model=erased, data=data, budget=100)
    object.__setattr__(arena, "rows", (np.arange(600), np.arange(600)))
    outcome = search(ATTACKS[name], arena)
    assert max(p.test for p in outcome.points) < 0.45, name  # chance is 1/3


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("c", [0.01, 1.0, 100.0])
def test_logistic_regression_is_scikit_learns(c, classes):
    x, y = separable(300, 0)
    z, y = torch.from_numpy(x).to(F)[y < classes], torch.from_numpy(y[y < classes])
    z = z + 3 * torch.randn(z.shape, generator=torch.Generator().manual_seed(0), dtype=F)
    model = LogisticRegression(C=c, max_iter=1000, tol=1e-9).fit(z.numpy(), y.numpy())
    weights, bias, _ = logistic(z, y, classes, c, 1000)
    best = nn.functional.nll_loss(torch.from_numpy(model.predict_log_proba(z.numpy())), y)
    best = best + float(np.square(model.coef_).sum()) / (2 * c * len(z))
    shown = weights if classes > 2 else weights[1] - weights[0]
    loss = nn.functional.cross_entropy(z @ weights.T + bias, y)
    assert 0 <= loss + shown.square().sum() / (2 * c * len(z)) - best + 1e-9 < 1e-4


def test_logistic_regression_of_float32_features_of_any_scale_does_not_stop_early():
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(600) % 3
    z = torch.randn(600, 8, generator=draws) + 2 * torch.eye(3, 8)[y]
    z[:, 7] = 1e4 * z[:, 7] + 3e4  # all in float32 it would end at chance, after two steps
    weights, bias, _ = logistic(z, y, int(y.max()) + 1, 100.0, 500)
    assert float(((z.double() @ weights.T + bias).argmax(1) == y).double().mean()) > 0.8


@pytest.mark.parametrize("noise", [0.1, 3.0, 30.0])
def test_the_kernels_damping_has_the_least_generalised_cross_validation_error(noise):
    rng = np.random.default_rng(3)
    z = rng.normal(size=(60, 8)) * np.logspace(0, -2, 8)
    y = z @ rng.normal(size=(8, 2)) + noise * rng.normal(size=(60, 2))

    def error(ridge):  # by the definition, with the hat matrix
        damping = ridge * np.trace(centred.T @ centred) / 8 * np.eye(8)
        hat = centred @ np.linalg.solve(centred.T @ centred + damping, centred.T)
        return np.sum((targets - hat @ targets) ** 2) / (1 - (1 + np.trace(hat)) / rows) ** 2

    for rows in (60, 6):  # by the Gram of features, and by that of rows
        centred, targets = z[:rows] - z[:rows].mean(0), y[:rows] - y[:rows].mean(0)
        found = ridges_of(torch.from_numpy(z[:rows]), torch.from_numpy(y[:rows]))
        assert found.least_error(RIDGES) == min(RIDGES, key=error)


def test_the_kernel_may_damp_less_where_the_best_class_counts_and_not_where_squares_do():
    def noisy(seed):
        x, y = separable(300, seed)
        return x + 2 * np.random.default_rng(seed).normal(size=x.shape).astype(np.float32), y

    def targets(seed):
        x, y = noisy(seed)
        return x, np.eye(3)[y]

    attack = ATTACKS["kernel"]
    arena = arena_for(attack, data=noisy)
    settings = {"width": 0.1, "basis": "standardised"}
    seen = [curve(attack, arena, settings | {"damping": d})[-1].validation for d in (1.0, 0.01)]
    assert seen[0] != seen[1] and space_of(attack, arena)["damping"] == (1.0, 0.01)
    assert space_of(attack, arena_for(attack, data=targets, kind="regression"))["damping"] == (1.0,)


def test_neighbours_are_billed_for_the_rows_they_are_asked_about():
    arena = arena_for(ATTACKS["knn"])
    settings = {"k": 1, "metric": "cosine", "basis": "standardised"}
    seen, blind = (
        curve(ATTACKS["knn"], dataclasses.replace(arena, blind=blind), settings)[0].flops
        for blind in (False, True)
    )
    validation = len(arena.rows[1])
    assert blind / seen == pytest.approx(validation / (validation + len(arena.test.labels)))
