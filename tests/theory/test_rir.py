import math

import pytest
import torch
from torch import nn

from helpers import reference
from immunis import RankWarning, gram, relative_immunization_ratio
from immunis.theory.definition import Condition, definition

F = torch.float64


def test_rir_equals_its_definition(pair):
    theta = torch.randn(5, 5, dtype=F)
    found = relative_immunization_ratio(theta, *pair)
    k_p, k_h = (gram(t).matrix() for t in pair)
    harmful = reference.kappa(theta.T @ k_h @ theta) / reference.kappa(k_h)
    primary = reference.kappa(theta.T @ k_p @ theta) / reference.kappa(k_p)
    assert found.harmful == pytest.approx(float(harmful), rel=1e-6)
    assert found.primary == pytest.approx(float(primary), rel=1e-6)
    assert found.value == pytest.approx(float(harmful / primary), rel=1e-6)


def test_rir_of_the_identity_and_of_the_reference_itself_is_one(pair):
    assert relative_immunization_ratio(torch.eye(5), *pair).value == pytest.approx(1)
    theta = torch.randn(5, 5, dtype=F)
    assert relative_immunization_ratio(theta, *pair, reference=theta).value == pytest.approx(1)


def test_rir_ignores_scale_and_rotation(pair):
    theta = torch.randn(5, 5, dtype=F)
    plain = relative_immunization_ratio(theta, *pair).value
    turned = 1e5 * theta @ reference.random_orthogonal(5)
    assert relative_immunization_ratio(turned, *pair).value == pytest.approx(plain, rel=1e-6)


def test_rir_takes_layers_and_networks(pair):
    layer = nn.Linear(5, 5, bias=False)
    a = relative_immunization_ratio(layer, *pair).value
    b = relative_immunization_ratio(layer.weight.T, *pair).value
    assert a == pytest.approx(b, rel=1e-6)
    net = reference.PlainNet(5, 3).eval()
    found = relative_immunization_ratio(net, *pair, reference=nn.Linear(5, 3))
    assert found.value > 0


def test_rir_between_unlike_ranks_is_not_defined(pair):
    with pytest.warns(RankWarning, match="from 5 to 4.*RIR is not defined"):
        found = relative_immunization_ratio(torch.diag(torch.tensor([1.0, 1, 1, 1, 0])), *pair)
    assert math.isnan(found.value)
    nothing = dict.fromkeys(("harmful", "primary", "value"))
    assert found.figures == {**nothing, "reason": "ranks differ"}
    conditions = definition(found, (0.9, 0.9))
    assert conditions.harmful == conditions.primary == Condition(None, None)
    assert conditions.score.holds
