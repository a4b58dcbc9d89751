"""What an audit says of a model without attacking it."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from helpers.audits import run
from immunis import Effort, audit
from immunis.attacks.arrays import Data, Samples
from immunis.audits import describe
from immunis.audits.describe import Reader, primary_hits
from immunis.methods.kept_primary import most_lost
from immunis.models.find_cut import cut


def test_the_primary_score_uses_the_models_own_head(result, models, tasks):
    x, y = tasks.primary.test.tensors()
    expected = float((models["original"](x).argmax(1) == y).double().mean())
    rows = result.record.figures["models"]
    assert rows["original"]["primary"] == pytest.approx(expected)
    own = models["erase"].model(x).argmax(1)
    assert rows["erase"]["primary"] == pytest.approx(float((own == y).double().mean()))


def test_a_record_keeps_each_models_score_by_class_and_its_spectra(result, models, tasks):
    x, y = tasks.primary.test.tensors()
    right = models["original"](x).argmax(1) == y
    f = result.record.figures
    assert f["classes"] == [str(c) for c in range(10)]
    expected = [float(right[y == c].double().mean()) for c in range(10)]
    assert f["models"]["original"]["per_class"] == pytest.approx(expected, abs=1e-4)
    original, erase = (f["models"][name] for name in ("original", "erase"))
    for role in ("primary", "harmful"):
        spectrum = original["spectra"][role]
        assert spectrum["rank"] == original[f"rank_{role}"] == spectrum["index"][-1]
        ratio = spectrum["eigenvalues"][0] / spectrum["eigenvalues"][-1]
        assert ratio == pytest.approx(original[f"kappa_{role}"], rel=1e-2)
    assert original["ceiling"] >= 1 and "ceiling" not in erase


def test_a_record_says_which_conditions_of_definition_3_1_each_model_meets(result):
    rows = result.record.figures["models"]
    assert [part["holds"] for part in rows["original"]["definition"].values()] == [
        False,
        True,
        True,
    ]
    for role in ("primary", "harmful"):
        factor = rows["erase"][f"kappa_{role}"] / rows["original"][f"kappa_{role}"]
        alike = rows["erase"][f"rank_{role}"] == rows["original"][f"rank_{role}"]
        assert rows["erase"]["definition"][role]["figure"] == (factor if alike else None)
    change = rows["erase"]["primary"] - rows["original"]["primary"]
    assert rows["erase"]["definition"]["score"] == {"figure": change, "holds": change >= -0.005}


def test_a_broken_model_is_broken_not_immune(models, tasks):
    dead = nn.Sequential(*[type(m)(m.in_features, m.out_features) if isinstance(m, nn.Linear) else m
                           for m in models["original"]]).eval()  # fmt: skip
    with torch.no_grad():
        dead[2].weight.mul_(1e-3)
        for parameter in dead[3].parameters():
            parameter.zero_()
    case = run({**models, "dead": dead}, tasks).worst_case["dead"]
    assert case.broken
    assert math.isnan(case.residual_advantage)


def test_a_model_is_broken_by_the_rule_of_immunize(models, tasks):
    weak = copy.deepcopy(models["original"])
    with torch.no_grad():
        weak[3].bias[8:].sub_(100.0)  # it never answers two of ten classes
    one = run({"original": models["original"], "weak": weak}, tasks, ["ridge"], seeds=1).record
    rows = one.figures["models"]
    told = [row["primary"] for row in rows.values()]
    expected = most_lost(*(primary_hits(row)[0] for row in rows.values()), 0.005)
    assert rows["weak"]["most_lost"] == pytest.approx(expected)
    assert told[0] - told[1] > expected and told[1] > 0.5  # far above chance
    assert rows["weak"]["broken"] and not rows["original"]["broken"]
    assert one.settings["tolerance"] == 0.005


def test_collapsed_features_are_broken_not_a_crash(models, tasks):
    dead = copy.deepcopy(models["original"])
    with torch.no_grad():
        dead[2].weight.zero_()
        dead[2].bias.zero_()
    found = run({**models, "dead": dead}, tasks, ["ridge"], seeds=1)
    assert found.worst_case["dead"].broken
    assert math.isnan(found.record.figures["models"]["dead"]["kappa_harmful"])


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
            effort=Effort(1, 5),
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


def wide_model():
    """A stage of 4 × 24 × 24 numbers."""
    torch.manual_seed(0)
    stage = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
    return nn.Sequential(stage, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()


def test_wide_maps_are_projected_on_principal_directions_batch_by_batch(monkeypatch):
    monkeypatch.setattr(describe, "DIRECTIONS", 20)
    draws = torch.Generator().manual_seed(0)
    images = torch.randn(70, 1, 24, 24, generator=draws).numpy()
    task = Samples(
        "classification", 3, Data(images[:50], np.arange(50) % 3), Data(images[50:], np.zeros(20))
    )
    example = torch.from_numpy(images[:2])
    whole = cut(wide_model(), example, 3)
    (stage,) = whole.positioned
    reader = Reader(example)
    reader.batch, largest = 8, []
    real = reader._forward

    def seen(model, inputs, layer):
        largest.append(len(inputs))
        return real(model, inputs, layer)

    monkeypatch.setattr(reader, "_forward", seen)
    train, test = reader.read("m", whole, task, f"{stage}:maps")
    assert train.shape == (50, 20) and test.shape == (20, 20) and max(largest) == 8
    raw = [whole.features(torch.from_numpy(x), f"{stage}:maps") for x in (images[:50], images[50:])]
    left, _, right = np.linalg.svd(raw[0].detach().numpy() - raw[0].detach().numpy().mean(0))
    expected = (raw[1].detach().numpy() - raw[0].detach().numpy().mean(0)) @ right[:20].T
    np.testing.assert_allclose(np.abs(test), np.abs(expected), atol=1e-3)
    narrow = reader.read("m", whole, task, stage)[0]
    assert narrow.shape == (50, 4)


def test_fewer_rows_are_kept_where_maps_are_very_wide(monkeypatch):
    monkeypatch.setattr(describe, "DIRECTIONS", 8)
    monkeypatch.setattr(describe, "MOST", 12 * 2304)
    images = torch.randn(30, 1, 24, 24, generator=torch.Generator().manual_seed(0)).numpy()
    part = Data(images, np.arange(30) % 3)
    whole = cut(wide_model(), torch.from_numpy(images[:2]), 3)
    reader, kept = Reader(torch.from_numpy(images[:2])), []
    real = describe.principal_directions
    monkeypatch.setattr(
        describe, "principal_directions", lambda z, most: kept.append(len(z)) or real(z, most)
    )
    task = Samples("classification", 3, part, part)
    assert reader.read("m", whole, task, "0:maps")[0].shape == (30, 8)
    assert kept == [12]
