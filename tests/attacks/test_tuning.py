"""How a network is trained further."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from helpers.arenas import arena_for, curve, image_data
from helpers.networks import Residual, Tokens
from immunis.attacks import ATTACKS, tuning
from immunis.attacks.learning import in_batches
from immunis.attacks.search import search, space_of
from immunis.attacks.tuning import Average, Network, tune
from immunis.models.find_cut import cut


def defaults(arena, **changes):
    space = space_of(ATTACKS["finetune_all"], arena)
    return {name: values[0] for name, values in space.items()} | changes


def test_running_out_of_memory_halves_the_batch_and_says_so(monkeypatch):
    real = tuning.loss_of

    def small(outputs, *others):
        if len(outputs) > 40:
            raise torch.OutOfMemoryError("pretend")
        return real(outputs, *others)

    monkeypatch.setattr(tuning, "loss_of", small)
    arena = arena_for(ATTACKS["finetune_all"], budget=5)
    points = curve(ATTACKS["finetune_all"], arena, defaults(arena))
    assert arena.notes == [
        "out of memory: continued with batches of 60",
        "out of memory: continued with batches of 30",
    ]
    assert points[-1].samples == 5 * 30


@pytest.mark.parametrize(("optimizer", "scale"), [("sgd", 1.0), ("adamw", 0.01)])
def test_lower_stages_learn_at_lower_rates_and_the_head_at_the_full_one(optimizer, scale):
    arena = arena_for(ATTACKS["batchnorm_only"])
    network = Network(arena)
    settings = defaults(arena, optimizer=optimizer, rate=0.1, layer_decay=0.5)
    found = {}
    for group in tuning._optimizer(network, settings).param_groups:
        found |= {id(p): group["lr"] for p in group["params"]}
    expected = {"layer2": 1 / 2, "layer1": 1 / 4, "stem": 1 / 8, "norm": 1 / 8}
    for name, parameter in network.body.named_parameters():
        part = name.partition(".")[0]
        if part != "fc":
            assert found[id(parameter)] == pytest.approx(0.1 * scale * expected[part]), name
    assert found[id(network.head.weight)] == pytest.approx(0.1 * scale)


def test_blocks_of_a_transformer_lie_one_below_the_other():
    whole = cut(Tokens().eval(), torch.randn(2, 5, 6), outputs=2)
    arena = dataclasses.replace(arena_for(ATTACKS["finetune_all"]), cut=whole, outputs=2)
    network = Network(arena)
    depths = network.depths()
    tops = [depths[id(block.weight)] for block in network.body.blocks]
    assert tops == [4, 3, 2, 1]
    assert depths[id(network.body.token)] == 5


def test_rates_rise_and_then_fall_to_zero():
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    arena, rates = arena_for(ATTACKS["ridge"], budget=100), []

    def train(rows, _):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()

    rows = torch.arange(8)
    list(in_batches(arena, optimizer, train, lambda: (0, 0), rows, 4, 0.0, warm_up=0.1))
    top = rates.index(max(rates))
    assert 8 <= top <= 12 and rates[0] < 0.1 < 0.9 < rates[top] and rates[-1] < 0.01
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:])[::-1]


def test_a_pilot_is_scored_at_its_end_alone():
    arena = dataclasses.replace(arena_for(ATTACKS["finetune_all"], budget=20), pilot=True)
    points = curve(ATTACKS["finetune_all"], arena, defaults(arena))
    assert [p.steps for p in points] == [20]


def test_the_average_follows_the_weights_and_leaves_them_as_they_were():
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    network[0].bias.requires_grad_(False)
    average = Average(network, 1000)
    assert len(average.live) == 5  # not the frozen bias, not the count of batches
    weight = network[0].weight.data
    for value in range(1, 101):
        weight.fill_(float(value))
        average.update()
    with torch.no_grad(), average.in_place():
        assert 80 < float(network[0].weight[0, 0].detach()) < 100  # the last tenth or so
    assert (weight == 100).all()


def test_the_average_counts_where_it_validates_better(monkeypatch):
    """Weights that jump about a good place are worse than their mean."""
    calls = []
    real = Average.in_place

    def watched(self):
        calls.append("average")
        return real(self)

    answers = iter([0.2, 0.6, 0.7, 0.5, 0.4, 0.3])  # held, averaged, test; then the weights win
    monkeypatch.setattr(Average, "in_place", watched)
    monkeypatch.setattr(tuning, "_hits", lambda *_: torch.tensor([1.0 - next(answers)]).double())
    arena = arena_for(ATTACKS["finetune_all"], budget=2)
    points = curve(ATTACKS["finetune_all"], arena, defaults(arena))
    assert [(p.validation, p.test) for p in points] == [
        pytest.approx((0.6, 0.7)), pytest.approx((0.5, 0.3))
    ]  # fmt: skip
    assert len(calls) == 2


def test_noisy_descent_ends_better_for_the_average():
    arena = arena_for(ATTACKS["finetune_all"], budget=60)
    network = Network(arena)
    settings = defaults(arena, rate=1.0)
    *_, last = tune(arena, network, network.body.parameters(), settings)
    assert math.isfinite(last.scores()[1])
    assert network.training


def test_augmented_training_sees_other_images_each_time(monkeypatch):
    seen = []
    real = Network.forward

    def spy(self, inputs):
        seen.append(inputs.detach().clone()) if self.training else None
        return real(self, inputs)

    monkeypatch.setattr(Network, "forward", spy)
    arena = arena_for(ATTACKS["finetune_all"], budget=3, model=Residual().eval(), data=image_data)
    for augment in (True, False):
        seen.clear()
        curve(ATTACKS["finetune_all"], arena, defaults(arena, augment=augment))
        rows = {row.numpy().tobytes() for batch in seen for row in batch}
        known = {row.tobytes() for row in arena.train.inputs}
        assert bool(rows & known) is not augment
    again = [batch.clone() for batch in seen]
    seen.clear()
    curve(ATTACKS["finetune_all"], arena, defaults(arena))
    assert all(torch.equal(a, b) for a, b in zip(again, seen, strict=True))


def test_label_smoothing_keeps_answers_modest():
    sizes = {}
    for smoothing in (0.0, 0.3):
        arena = arena_for(ATTACKS["finetune_all"], budget=100)
        network = Network(arena)
        settings = defaults(arena, smoothing=smoothing)
        list(tune(arena, network, network.body.parameters(), settings))
        with torch.no_grad():
            outputs = network.eval()(torch.from_numpy(arena.train.inputs))
        sizes[smoothing] = float(outputs.softmax(1).max(1).values.mean())
    assert sizes[0.3] < 0.9 < sizes[0.0]


def test_a_rate_that_diverges_scores_as_the_worst_answer():
    arena = arena_for(ATTACKS["finetune_all"], budget=30)
    points = curve(ATTACKS["finetune_all"], arena, defaults(arena, rate=1e30))
    assert points[-1].validation <= 0.5
    assert search(ATTACKS["finetune_all"], arena).points[-1].test > 0.9
