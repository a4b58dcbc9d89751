"""Features are read once, and rows are told apart."""

import copy

import pytest
import torch
from torch import nn

from helpers.audits import run
from immunis import Effort, Task, audit
from immunis.audits.feature_cache import Reader


def test_reading_features_survives_a_lack_of_memory(models, tasks, monkeypatch):
    real = Reader._forward

    def small(self, model, inputs, layer):
        if len(inputs) > 100:
            raise torch.OutOfMemoryError("pretend")
        return real(self, model, inputs, layer)

    monkeypatch.setattr(Reader, "_forward", small)
    with pytest.warns(UserWarning, match="batches of 64"):
        audit(
            {"original": models["original"]},
            tasks.primary,
            tasks.attacker,
            attacks=["ridge"],
            effort=Effort(1),
        )


def test_models_that_differ_in_hooks_or_attributes_are_told_apart(models, tasks):
    class Gain(nn.Module):
        def __init__(self, network, gain):
            super().__init__()
            self.network, self.gain = network, gain

        def forward(self, x):
            return self.network(torch.tanh(self.gain * x))

    network = models["original"]
    hooked = copy.deepcopy(network)
    hooked[0].register_forward_hook(lambda m, i, o: torch.zeros_like(o) + 0.1 * o[:, :1])
    gains = {"a": Gain(network, 1.0).eval(), "b": Gain(network, 1e4).eval()}
    found = run(
        {"original": network, "hooked": hooked, **gains},
        tasks, ["ridge"], seeds=1,
    ).record.figures  # fmt: skip
    scores = {name: row["score"]["mean"] for name, row in found["attacks"]["ridge"].items()}
    assert scores["hooked"] < scores["original"]
    assert scores["a"] != scores["b"]


def test_shared_rows_of_the_attackers_own_data_are_counted(models, tasks):
    x, y = tasks.attacker.train.tensors()
    leaky = Task((x, y), (x[:10], y[:10]), "leaky")
    with pytest.warns(UserWarning, match="10 sample"):
        found = audit(models, tasks.primary, leaky, attacks=["ridge"], effort=Effort(1, 5))
    assert found.record.figures["disjoint"]["train_in_test"] == 10
