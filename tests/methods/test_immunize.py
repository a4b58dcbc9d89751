"""The verb: what it refuses, what its record says, and maps folded into networks."""

import pickle

import pytest
import torch
from torch import nn

from immunis import InputError, NumericalError, Task, audit, immunize

F = torch.float64
EYE = torch.eye(5, dtype=F)


def test_bad_pairs_are_refused(pair):
    primary, harmful = pair
    other = Task((torch.randn(20, 4), torch.arange(20) % 2), name="narrow")
    with pytest.raises(InputError, match="narrow inputs"):
        immunize(EYE, primary, other, "frontier")
    zero = Task((torch.zeros(20, 5), torch.arange(20) % 2), name="nothing")
    for bad in ((primary, zero), (zero, harmful)):
        with pytest.raises(InputError, match="nothing: every feature of every sample is zero"):
            immunize(EYE, *bad, "condition")
    one_class = Task((torch.randn(20, 5), torch.zeros(20, dtype=torch.long)), name="single")
    with pytest.raises(InputError, match="at least two classes"):
        immunize(EYE, primary, one_class, "erase")
    with pytest.raises(InputError, match="expected immunize\\(model, primary, harmful"):
        immunize(primary, harmful, EYE)
    with pytest.raises(InputError, match="harmful: expected a Task, got Tensor"):
        immunize(EYE, primary, EYE)
    with pytest.raises(InputError, match=r"harmful\[1\]: expected a Task, got str"):
        immunize(EYE, primary, [harmful, "ridge"])
    with pytest.raises(InputError, match="expected nn.Linear"):
        immunize(EYE, primary, harmful, head="head")
    for bad in (nn.Linear(4, 3), nn.Linear(5, 7)):
        with pytest.raises(InputError, match="reads 5 features and gives 3 outputs"):
            immunize(EYE, primary, harmful, head=bad)
    empty = nn.Linear(5, 3)
    empty.weight.data.fill_(float("nan"))
    with pytest.raises(InputError, match="NaN"):
        immunize(EYE, primary, harmful, head=empty)


def test_divergence_is_reported_not_returned(pair):
    with pytest.raises(NumericalError, match="lower the step"):
        immunize(EYE, *pair, "condition", step=1e6, steps=50)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_and_head_work_together_as_plain_modules(dtype, bias, pair):
    layer = nn.Linear(5, 5, bias=bias).to(dtype)
    result = immunize(layer, *pair, "frontier")
    x = pair[0].test.tensors()[0].to(dtype)
    before = immunize(layer, *pair, "erase", strength=1.0)
    assert result.model.weight.dtype == result.head.weight.dtype == dtype
    old, new = (r.head(r.model(x)).double() for r in (before, result))
    if dtype != torch.bfloat16:
        torch.testing.assert_close(new, old, rtol=1e-3, atol=1e-3)
    assert immunize(torch.eye(5, dtype=dtype), *pair, "erase").model.weight.dtype == dtype


def test_before_and_after_in_a_record_are_of_the_given_extractor(pair):
    theta = torch.randn(5, 5, dtype=F)
    figures = immunize(theta, *pair, "erase", strength=1.0).record.figures
    assert figures["rir"] == pytest.approx({"harmful": 1, "primary": 1, "value": 1})
    assert figures["rir_against_inputs"]["value"] != pytest.approx(1)


def test_a_bias_is_in_the_ceiling_too(pair):
    x, y = pair[0].train.tensors()
    primary = Task((x + 50, y), name="p")
    x, y = pair[1].train.tensors()
    harmful = Task((x + 50, y), name="h")
    layer = nn.Linear(5, 5, dtype=F)
    layer.weight.data.copy_(EYE)
    layer.bias.data.fill_(-50)
    figures = immunize(layer, primary, harmful, "frontier").record.figures
    assert figures["rir"]["value"] <= figures["ceiling"] * (1 + 1e-6)
    assert figures["ceiling_against_inputs"] is None


def test_a_record_stays_true_whatever_becomes_of_the_layers(pair):
    layer = nn.Linear(5, 5)
    result, same = (immunize(layer, *pair, "frontier") for _ in range(2))
    expected = same.record.figures
    layer.weight.data.zero_()
    result.model.weight.data.zero_()
    result.head.weight.data.zero_()
    restored = pickle.loads(pickle.dumps(result))
    for found in (result.record.figures, restored.record.figures):
        assert found["rir"] == expected["rir"]
        assert found["primary_score"] == expected["primary_score"]


def test_a_single_class_has_no_score(pair):
    one = Task((torch.randn(30, 5), torch.zeros(30, dtype=torch.long)), name="one")
    assert immunize(EYE, one, pair[1], "frontier").record.figures["primary_score"]["after"] is None


def small_network(pair, head=True):
    parts = [nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6)]
    return nn.Sequential(*parts, *([nn.Linear(6, 3)] if head else [])).eval()


@pytest.mark.parametrize("method", ["frontier", "erase", "condition"])
def test_a_network_comes_back_plain_with_the_map_folded_in(method, pair):
    network = small_network(pair)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    result = immunize(network, *pair, method)
    assert type(result.model) is nn.Sequential
    assert result.model.state_dict().keys() == before.keys()
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert torch.equal(result.model[0].weight, network[0].weight)
    assert not torch.equal(result.model[2].weight, network[2].weight)
    assert result.head is result.model[3]
    x = pair[0].test.tensors()[0].float()
    torch.testing.assert_close(result.model(x), network(x), rtol=1e-3, atol=1e-3)
    assert result.record.figures["rir"]["value"] > 0


def test_a_network_may_know_more_classes_than_its_task_shows(pair):
    primary, harmful = pair
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 4)).eval()
    wide = Task(primary.train.tensors(), primary.test.tensors(), "wide", classes=4, names="abcd")
    result = immunize(network, wide, harmful, "erase")
    assert result.head is result.model[3] and result.head.out_features == 4


def test_a_head_without_bias_is_compensated_or_refused(pair):
    network = small_network(pair)
    network[3] = nn.Linear(6, 3, bias=False)
    network.eval()
    result = immunize(network, *pair, "erase", strength=0.01)
    x = pair[0].test.tensors()[0].float()
    torch.testing.assert_close(result.model(x), network(x), rtol=1e-3, atol=1e-3)
    with pytest.raises(InputError, match="no bias"):
        immunize(network, *pair, "erase", strength=0.0)


def test_a_network_without_a_head_gets_a_least_squares_one(pair):
    result = immunize(small_network(pair, head=False), *pair, "erase")
    assert result.head.in_features == 6
    assert result.record.figures["primary_score"]["after"] > 0.5
    own = nn.Linear(6, 3).eval()
    x = pair[0].test.tensors()[0].float()
    network = small_network(pair, head=False)
    result = immunize(network, *pair, "frontier", head=own)
    torch.testing.assert_close(result.head(result.model(x)), own(network(x)), rtol=1e-3, atol=1e-3)
    audit(
        {"original": (network, own), "defended": result},
        *pair,
        attacks=["ridge"],
        effort={"seeds": 1, "budget": 5},
    )  # in one dtype throughout
    assert result.record.data["primary"]["train"] == pair[0].train.fingerprint()


def test_a_numpy_theta_is_immunized_and_audited_like_any_other(pair):
    theta = torch.randn(5, 5, dtype=torch.float64)
    result, same = (immunize(given, *pair, "erase") for given in (theta.numpy(), theta))
    assert torch.equal(result.model.weight, same.model.weight)
    few = {"seeds": 1, "budget": 5}
    found = audit({"original": theta.numpy(), "erase": result}, *pair, attacks=["knn"], effort=few)
    other = audit({"original": theta, "erase": same}, *pair, attacks=["knn"], effort=few)
    scores = [a.record.figures["attacks"]["knn"]["original"]["score"] for a in (found, other)]
    assert scores[0] == scores[1]
