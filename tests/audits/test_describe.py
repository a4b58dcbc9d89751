"""What an audit says of a model without attacking it."""

import copy
import math

import pytest
import torch
from torch import nn

from helpers.audits import run


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


def test_collapsed_features_are_broken_not_a_crash(models, tasks):
    dead = copy.deepcopy(models["original"])
    with torch.no_grad():
        dead[2].weight.zero_()
        dead[2].bias.zero_()
    found = run({**models, "dead": dead}, tasks, ["ridge"], seeds=1)
    assert found.worst_case["dead"].broken
    assert math.isnan(found.record.figures["models"]["dead"]["kappa_harmful"])
