"""Algorithm 1: equal to the naive loop, certified, searched, in mini-batches."""

import pytest
import torch

from helpers.reference import naive_algorithm_1, r_ill, r_well
from helpers.tasks import linear_problem, make_task
from immunis import Task, gram, immunize, relative_immunization_ratio
from immunis.methods import get_method
from immunis.methods.condition import MULTIPLES, STEP_SIZES, batches
from immunis.theory.frontier import ceiling

F = torch.float64
EYE = torch.eye(5, dtype=F)


def test_certified_algorithm_1_reaches_the_ceiling(pair):
    top = ceiling(gram(pair[0]), gram(pair[1]))
    result = immunize(EYE, *pair, "condition", certified=True, steps=1)
    assert relative_immunization_ratio(result.model, *pair).value == pytest.approx(top, rel=1e-6)


def test_certified_steps_keep_the_primary_task_as_easy_as_it_was(quiet_rank):
    x, y = make_task(80, seed=1).train.tensors()
    primary = Task((torch.cat([x, 0 * x[:, :2]], 1), y), name="p")  # two free directions
    x, y = make_task(80, seed=2).train.tensors()
    harmful = Task((torch.cat([x, torch.randn(60, 2, dtype=F)], 1), y), name="h")
    result = immunize(torch.eye(7, dtype=F), primary, harmful, "condition", certified=True)
    figures = result.record.figures
    assert figures["ceiling"] == float("inf")
    assert figures["rir"]["primary"] <= 1 + 1e-9
    assert figures["rir"]["value"] > 1


def test_algorithm_1_improves_rir_and_search_improves_it_further(pair):
    one = immunize(EYE, *pair, "condition", steps=25).record.figures
    many = immunize(EYE, *pair, "condition", search=True, steps=25).record.figures
    assert one["rir"]["value"] > 1
    assert many["rir"]["value"] >= one["rir"]["value"]
    assert many["details"]["trials"] == len(STEP_SIZES) * len(MULTIPLES) ** 2


def test_lambdas_are_balanced_against_the_loss_or_as_the_paper_says_against_each_other(pair):
    def lambdas(**settings):
        details = immunize(EYE, *pair, "condition", steps=1, **settings).record.figures["details"]
        return details["lambda_primary"], details["lambda_harmful"]

    loss = lambdas()
    one = lambdas(balance="regularizers")
    assert one == (1, pytest.approx(loss[1] / loss[0]))
    assert lambdas(balance="regularizers", lambda_primary=7.0) == (7, pytest.approx(7 * one[1]))
    more = lambdas(balance="regularizers", multiple_primary=3.0, multiple_harmful=2.0)
    assert more == (3, pytest.approx(6 * one[1]))
    searched = immunize(EYE, *pair, "condition", steps=5, search=True, balance="regularizers")
    assert searched.record.figures["details"]["lambda_primary"] in MULTIPLES


def test_full_batch_algorithm_1_follows_the_naive_one_step_by_step(pair):
    """One mini-batch that holds all data, plain descent: the naive loop is Algorithm 1."""
    primary, harmful = pair
    (x_p, y_p), (x_h, _) = (task.train.tensors() for task in pair)
    targets = primary.targets(y_p)
    theta = torch.eye(5, dtype=F) + 0.1 * torch.randn(5, 5, dtype=F)
    settings = {"step": 1e-5, "lambda_primary": 1e-3, "lambda_harmful": 1e3, "paper_scale": True}
    for steps in (1, 3):
        ours = get_method("condition")
        found = ours.solve(
            linear_problem(primary, harmful, theta), ours.configure({**settings, "steps": steps})
        )
        path = [theta.clone()]
        omega = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=F) / 5**0.5
        for _ in range(steps):
            naive, omega = naive_step(path[-1], omega, x_p, targets, x_h, settings)
            path.append(naive)
        assert found.details["best_step"] >= 1
        expected = path[found.details["best_step"]]
        torch.testing.assert_close(found.theta, expected, rtol=1e-9, atol=1e-12)


def naive_step(theta, omega, x_p, y_p, x_h, settings):
    theta, omega = theta.clone().requires_grad_(), omega.clone().requires_grad_()
    loss = ((x_p @ theta @ omega - y_p) ** 2).sum() / len(x_p)
    grad_theta, grad_omega = torch.autograd.grad(loss, (theta, omega))
    k_p, k_h = x_p.T @ x_p, x_h.T @ x_h
    (well,) = torch.autograd.grad(r_well(theta.T @ k_p @ theta), theta)
    (ill,) = torch.autograd.grad(r_ill(theta.T @ k_h @ theta), theta)
    step = (
        grad_theta
        + settings["lambda_primary"] * torch.linalg.inv(k_p) @ well
        + settings["lambda_harmful"] * torch.linalg.inv(k_h) @ ill
    )
    eta = settings["step"]
    return (theta - eta * step).detach(), (omega - eta * grad_omega).detach()


def test_the_naive_loop_takes_the_naive_step(pair):
    (x_p, y_p), (x_h, _) = (task.train.tensors() for task in pair)
    settings = {"step": 1e-5, "lambda_primary": 1e-3, "lambda_harmful": 1e3}
    found = naive_algorithm_1(
        x_p,
        pair[0].targets(y_p),
        x_h,
        theta=EYE.clone(),
        epochs=1,
        step=1e-5,
        lambda_p=1e-3,
        lambda_h=1e3,
        batch=60,
        adam=False,
        ridge=0.0,
    )
    omega = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=F)
    expected, _ = naive_step(EYE, omega, x_p, pair[0].targets(y_p), x_h, settings)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_balancing_gives_every_term_the_same_pull(pair):
    details = immunize(EYE, *pair, "condition").record.figures["details"]
    given = immunize(
        EYE,
        *pair,
        "condition",
        lambda_primary=details["lambda_primary"],
        lambda_harmful=details["lambda_harmful"],
    ).record.figures["details"]
    assert given == details


def test_mini_batches_pair_the_longer_set_with_a_cycled_shorter_one():
    long, short = make_task(80, name="long"), make_task(40, name="short")
    p = linear_problem(long, short)
    found = list(batches(p, 2, 16))
    assert len(found) == 2 * 4  # 60 training rows in batches of 16
    assert [len(b[0]) for b in found[:4]] == [len(b[2]) for b in found[:4]] == [16, 16, 16, 12]
    seen = torch.cat([b[0] for b in found[:4]])
    expected = long.train.tensors()[0].to(F)
    assert sorted(seen[:, 0].tolist()) == sorted(expected[:, 0].tolist())
