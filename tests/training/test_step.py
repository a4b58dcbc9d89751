"""One step: exact accumulation, clipping, balancing, the simulated attacker."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from helpers.networks import add_gradients, tasks
from helpers.training import SHORT, objective, run, states_equal, whole
from immunis import NumericalError, Task
from immunis.models.find_cut import cut
from immunis.training.loop import fit
from immunis.training.objective import SUPERVISED, Objective, supervised_only
from immunis.training.settings import Training


def test_accumulation_is_exact_for_every_term_of_probe():
    """A stage is narrowed at random: what a step draws does not depend on the number of parts."""
    short = dataclasses.replace(SHORT, steps=2, evaluate=1)
    once, parts = (
        run(
            "probe", dataclasses.replace(short, accumulate=n), settings={"weight": 3.0}
        ).model.state_dict()
        for n in (1, 3)
    )
    assert all(torch.allclose(once[key], parts[key], atol=1e-6) for key in once)


def test_gradients_are_clipped_or_left_as_they_are():
    def length(clip):
        training = dataclasses.replace(
            SHORT, steps=1, optimizer="sgd", rate=1e-3, clip=clip, evaluate=1, tolerance=1.0
        )
        after = run("probe", training, settings={"weight": 1e3}).model.state_dict()
        before = whole().model.state_dict()
        return math.sqrt(sum(float((after[k] - before[k]).square().sum()) for k in before))

    assert length(1e-3) <= 1.01e-3 * 1e-3 * 1.9  # Nesterov's first step is 1.9 times its size
    assert length(0.0) == length(1e30) > 1e3 * length(1e-3)


def test_simulated_attacker_leaves_the_parameters_where_they_were():
    """With nothing to do after the attack, attacking must not change the run."""

    def trained(steps, order):
        goal = dataclasses.replace(
            objective("imma", steps=steps, order=order),
            terms=lambda view: {SUPERVISED: view.supervised},
            after=lambda view: {},
            weights={},
        )
        return fit(whole(), goal, *tasks(), SHORT).model.state_dict()

    assert states_equal(trained(1, 1), trained(3, 2))


@pytest.mark.parametrize("both", [False, True])
def test_second_order_matches_the_derivative_through_the_attacker(both):
    """Against autograd through one unrolled step, on a model small enough to unroll.

    With both losses after the attack, as IMMA has them, the head's gradient is taken there too.
    """
    from lightning.fabric import Fabric

    from immunis.models.with_features import WithFeatures
    from immunis.training.objective import Attacker
    from immunis.training.setup import TrainingRun
    from immunis.training.step import Rows

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().eval()
    x, y = torch.randn(12, 3).double(), torch.eye(2)[torch.arange(12) % 2].double()
    part = cut(model, x[:2], 2)

    def loss_of(features):
        return (features.sum(1) - y[:, 0]).square().mean()

    def after_of(features):
        return (features[:, 0] - 2 * y[:, 1]).square().mean()

    attacker = Attacker(lambda view: loss_of(view.harmful[""]), steps=1, rate=0.05, order=2)
    goal = Objective(
        lambda view: {},
        {"after": 1.0},
        after=lambda view: (
            {"after": after_of(view.harmful[""])} | ({SUPERVISED: view.supervised} if both else {})
        ),
        after_primary=both,
        attacker=attacker,
    )
    body = list(model[0].parameters())
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    made = TrainingRun(fabric, fabric.setup(WithFeatures(part)), goal, body)
    add_gradients(made, Rows((x, torch.zeros(12, dtype=torch.long)), (x, y)))
    found = [p.grad.clone() for p in body]

    leaves = [p.detach().clone().requires_grad_() for p in body]

    def features(w, b):
        return torch.tanh(x @ w.T + b)

    gradients = torch.autograd.grad(loss_of(features(*leaves)), leaves, create_graph=True)
    size = sum(float(p.detach().square().sum()) for p in leaves) ** 0.5
    length = sum(float(g.detach().square().sum()) for g in gradients) ** 0.5
    factor = 0.05 * size / length  # the attacker's step size counts as a constant
    star = [p - factor * g for p, g in zip(leaves, gradients, strict=True)]
    head = [p.detach().clone().requires_grad_() for p in model[2].parameters()]
    upper = after_of(features(*star))
    if both:
        logits = features(*star) @ head[0].T + head[1]
        labels, smoothing = torch.zeros(12, dtype=torch.long), made.training.label_smoothing
        upper = upper + nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
        found += [p.grad for p in model[2].parameters()]
    wanted = torch.autograd.grad(upper, leaves + head if both else leaves)
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)


def test_balanced_weights_make_terms_pull_alike():
    result = run("condition", dataclasses.replace(SHORT, steps=1, evaluate=1))
    assert set(result.weights) == {SUPERVISED, "r_well", "r_ill"}
    assert all(0 < weight < math.inf for weight in result.weights.values())
    twice = run(
        "condition",
        dataclasses.replace(SHORT, steps=1, evaluate=1),
        settings={"multiple_harmful": 2.0, "lambda_primary": 0.5},
    )
    assert twice.weights["r_ill"] == pytest.approx(2 * result.weights["r_ill"])
    assert twice.weights["r_well"] == 0.5


def test_the_papers_balance_lets_r_ill_pull_as_hard_as_r_well():
    short = dataclasses.replace(SHORT, steps=1, evaluate=1)
    ours = run("condition", short).weights
    paper = run("condition", short, settings={"balance": "regularizers"}).weights
    assert paper["r_well"] == 1
    assert paper["r_ill"] == pytest.approx(ours["r_ill"] / ours["r_well"], rel=1e-4)
    more = {"balance": "regularizers", "multiple_primary": 2.0, "multiple_harmful": 5.0}
    more = run("condition", short, settings=more).weights
    assert (more["r_well"], more["r_ill"]) == (2, pytest.approx(10 * paper["r_ill"], rel=1e-4))


def test_a_term_that_is_not_finite_stops_the_balancing(monkeypatch):
    from immunis.methods import r_ill

    monkeypatch.setattr(r_ill, "r_ill", lambda h: h.sum() * float("nan"))
    with pytest.raises(NumericalError, match="step 1: the gradient of r_ill"):
        run("r_ill")


def test_a_term_without_gradient_is_said_to_be_left_out(monkeypatch):
    from immunis.methods import r_ill

    monkeypatch.setattr(r_ill, "r_ill", lambda h: 0.0 * h.sum())
    with pytest.warns(UserWarning, match="r_ill has no gradient"):
        result = run("r_ill")
    assert any("r_ill has no gradient" in note for note in result.notes)


def test_imma_learns_a_regression_too():
    primary, _ = tasks()
    x, _ = primary.train.tensors()
    harmful = Task((x, x[:, 0, 0, 0] * 2), name="pixel")
    result = fit(whole(), objective("imma"), primary, harmful, SHORT)
    assert result.weights["attacked"] > 0


def test_accumulation_is_exact_with_dropout():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4)
    ).eval()
    primary = tasks()[0]
    part = cut(model, primary.train.first(2), 4)
    training = Training(layers=["*"], steps=1, batch=32, rate=1e-3, optimizer="sgd", evaluate=1)

    def moved(accumulate):
        how = dataclasses.replace(training, accumulate=accumulate)
        after = fit(part, supervised_only(), primary, None, how).model.state_dict()
        return torch.cat([(after[k] - v).flatten() for k, v in model.state_dict().items()])

    twice, whole_batch = moved(2), moved(1)
    # masks differ between the two, but both are gradients of a loss with half the units
    # dropped: their sizes agree, which they do not when the two passes drop different units
    assert float(twice.norm() / whole_batch.norm()) == pytest.approx(1, abs=0.35)
