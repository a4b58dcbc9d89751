"""The contract that every method passes; a new method is picked up by itself."""

import dataclasses
import math
import warnings

import pytest
import torch
from torch import nn

from helpers.tasks import make_task
from helpers.training import objective
from immunis import InputError, SettingsError, Task, gram, immunize, relative_immunization_ratio
from immunis.methods import METHODS
from immunis.theory.frontier import ceiling
from immunis.theory.gram import as_extractor

F = torch.float64
LINEAR = [name for name, method in METHODS.items() if method.solve is not None]
EYE = torch.eye(5, dtype=F)
VARIANTS = {
    **{name: (name, {}) for name in LINEAR},
    "condition adam": ("condition", {"optimizer": "adam"}),
    "condition mini-batch": ("condition", {"batch_size": 16, "optimizer": "adam", "steps": 5}),
    "condition certified": ("condition", {"certified": True}),
    "frontier budget": ("frontier", {"budget": 50.0}),
    "frontier definition": ("frontier", {"goal": "definition"}),
    "erase fully": ("erase", {"strength": 0.0}),
}


@pytest.mark.parametrize("variant", VARIANTS)
class TestContract:
    def run(self, variant, model, pair, **more):
        method, settings = VARIANTS[variant]
        return immunize(model, *pair, method, **{**settings, **more})

    def test_returns_a_plain_layer_and_head(self, variant, pair):
        layer = nn.Linear(5, 5, bias=True)
        result = self.run(variant, layer, pair)
        assert type(result.model) is nn.Linear
        assert type(result.head) is nn.Linear
        assert result.model.state_dict().keys() == layer.state_dict().keys()
        assert result.model.weight.dtype == torch.float32
        assert not result.model.training
        assert result.head.out_features == 3

    @pytest.mark.parametrize("model", ["identity", "matrix", "biased layer"])
    def test_primary_predictions_are_unchanged_where_theta_is_invertible(
        self, variant, pair, model
    ):
        extractor = {
            "identity": EYE,
            "matrix": torch.randn(5, 5, dtype=F),
            "biased layer": nn.Linear(5, 5, dtype=F),
        }[model]
        untouched = immunize(extractor, *pair, "erase", strength=1.0)
        result = self.run(variant, extractor, pair)
        x = pair[0].test.tensors()[0]
        before, after = (r.head(as_extractor(r.model)(x)) for r in (untouched, result))
        if result.exact:
            torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
        else:
            assert variant == "erase fully"

    def test_a_given_head_is_compensated(self, variant, pair):
        head = nn.Linear(5, 3, dtype=F)
        result = self.run(variant, EYE, pair, head=head)
        x = pair[0].train.tensors()[0].to(F)
        if result.exact:
            torch.testing.assert_close(
                result.head(as_extractor(result.model)(x)), head(x), rtol=1e-5, atol=1e-6
            )

    def test_the_same_seed_gives_the_same_layer(self, variant, pair):
        a, b = (self.run(variant, EYE, pair, seed=3) for _ in range(2))
        assert torch.equal(a.model.weight, b.model.weight)

    @pytest.mark.filterwarnings("ignore::immunis.RankWarning")
    def test_changes_theta_and_writes_a_record(self, variant, pair):
        result = self.run(variant, EYE, pair)
        assert not torch.allclose(result.model.weight, EYE)
        record = result.record
        assert record.kind == "immunize"
        assert record.settings["method"] == VARIANTS[variant][0]
        ratio = record.figures["rir"]["value"]
        assert ratio is None if variant == "erase fully" else ratio > 0  # it changes ranks
        assert set(record.data) == {"primary", "harmful"}
        assert record.to_json()

    def test_does_not_touch_what_it_was_given(self, variant, pair):
        layer = nn.Linear(5, 5)
        before = [p.detach().clone() for p in layer.parameters()]
        self.run(variant, layer, pair)
        assert all(torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))

    def test_reports_progress_up_to_one(self, variant, pair):
        seen = []
        self.run(variant, EYE, pair, progress=lambda what, share: seen.append(share))
        assert seen == sorted(seen)
        assert seen[-1] == 1

    @pytest.mark.filterwarnings("ignore::immunis.RankWarning")
    def test_no_rir_exceeds_the_ceiling(self, variant, pair):
        ratio = relative_immunization_ratio(self.run(variant, EYE, pair).model, *pair)
        if variant == "erase fully":  # a singular θ changes ranks: RIR is not defined
            assert math.isnan(ratio.value)
        else:
            assert ratio.value <= ceiling(gram(pair[0]), gram(pair[1])) * (1 + 1e-6)

    @pytest.mark.filterwarnings("ignore::immunis.RankWarning")
    def test_regression_tasks_work(self, variant):
        primary, harmful = (
            Task((x, x @ torch.randn(5, dtype=F) + 0.1 * torch.randn(60, dtype=F)), name=name)
            for name, x in (
                (name, torch.randn(60, 5, dtype=F) * torch.arange(1.0, 6)) for name in ("p", "h")
            )
        )
        result = self.run(variant, EYE, (primary, harmful))
        assert result.head.out_features == 1
        assert result.record.figures["primary_score"]["after"] > 0.5

    def test_rank_deficient_data_work(self, variant, quiet_rank):
        tasks = []
        for seed, name in ((1, "p"), (2, "h")):
            x, y = make_task(80, seed=seed).train.tensors()
            x = torch.cat([x, x[:, :1], 0 * x[:, :1]], 1)  # a duplicate and a zero column
            tasks.append(Task((x, y), name=name))
        result = self.run(variant, torch.eye(7, dtype=F), tasks)
        assert torch.isfinite(result.model.weight).all()
        ratio = result.record.figures["rir"]["value"]
        assert ratio is None if variant == "erase fully" else ratio > 0


@pytest.mark.parametrize("method", LINEAR)
@pytest.mark.parametrize(
    ("model", "says"),
    [
        (torch.ones(5, 5), "singular"),
        (torch.zeros(5, 5), "singular"),
        (torch.randn(5, 4), "square"),
        (nn.Linear(5, 3), "square"),
        (torch.eye(6), "reads 6 features"),
        (torch.eye(5).long(), "floating-point"),
        (torch.full((5, 5), float("nan")), "finite"),
        ("theta", "expected nn.Linear"),
        (nn.ReLU().eval(), "not the output of a linear layer"),
        (nn.Sequential(nn.Linear(5, 5)), "training mode"),
    ],
)
def test_bad_models_are_refused_by_every_method(method, model, says, pair):
    with pytest.raises(InputError, match=says):
        immunize(model, *pair, method)


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("frontir", {}, "did you mean 'frontier'"),
        ("", {}, "unknown method"),
        ("frontier", {"budgt": 2}, "did you mean 'budget'"),
        ("frontier", {"budget": 0.5}, "budget"),
        ("frontier", {"floor": 0.0}, "floor"),
        ("frontier", {"goal": "definition", "budget": 2.0}, "drop budget"),
        ("erase", {"strength": -0.1}, "strength"),
        ("erase", {"strength": 1.1}, "strength"),
        ("erase", {"strength": float("nan")}, "strength"),
        ("condition", {"lambda_primary": -1.0}, "lambda_primary"),
        ("condition", {"lambda_harmful": -1.0}, "lambda_harmful"),
        ("condition", {"steps": 0}, "steps"),
        ("condition", {"step": 0.0}, "step"),
        ("condition", {"step": "fast"}, "step='fast' is of type str"),
        ("condition", {"steps": 2.5}, "steps=2.5 is of type float"),
        ("condition", {"certified": 1}, "certified=1 is of type int"),
        ("condition", {"batch_size": "8"}, "batch_size='8'"),
        ("condition", {"batch_size": 2.5}, "batch_size=2.5"),
        ("frontier", {"ridge": -1.0}, "ridge"),
        ("condition", {"optimizer": "adamm"}, "did you mean 'adam'"),
        ("condition", {"batch_size": 1}, "batch_size"),
        ("condition", {"fraction": 1.0}, "fraction"),
        ("condition", {"certified": True, "search": True}, "certified"),
        ("imma", {"inner_steps": 0}, "inner_steps"),
        ("imma", {"inner_step": -1.0}, "inner_step"),
    ],
)
def test_bad_settings_are_refused_before_any_work(method, settings, says, pair):
    with pytest.raises(SettingsError, match=says):
        immunize(EYE, *pair, method, **settings)


def test_settings_are_frozen():
    for method in METHODS.values():
        for settings in (method.settings, method.network):
            if settings is not None:
                with pytest.raises(dataclasses.FrozenInstanceError):
                    settings().steps = 3


def test_no_method_warns_on_healthy_data(pair):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in LINEAR:
            _ = immunize(EYE, *pair, method).record


def test_a_choice_of_numbers_that_is_not_one_of_them_is_told():
    with pytest.raises(SettingsError, match=r"unknown order of method 'imma' '3'\. Known: 1, 2"):
        objective("imma", order=3)
