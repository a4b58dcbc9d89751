"""What every attack promises."""

import numpy as np
import pytest
import torch

from helpers.arenas import IMAGES, arena_for, image_data, separable
from helpers.networks import Residual
from immunis.attacks import ATTACKS
from immunis.attacks.contract import NotApplicableError
from immunis.attacks.search import search


@pytest.mark.parametrize("name", ATTACKS)
class TestContract:
    def test_solves_a_separable_task(self, name):
        outcome = search(ATTACKS[name], arena_for(ATTACKS[name]))
        best = max(outcome.points, key=lambda p: p.validation)
        assert best.test > 0.9, (name, outcome)

    def test_costs_rise_along_the_curve_and_stay_in_budget(self, name):
        arena = arena_for(ATTACKS[name], budget=20, extraction_flops=100.0)
        points = search(ATTACKS[name], arena).points
        assert points[-1].steps <= 20
        for cost in ("steps", "samples", "flops", "seconds"):
            values = [getattr(p, cost) for p in points]
            assert values == sorted(values), cost
            assert values[-1] > 0, cost

    def test_the_same_seed_gives_the_same_curve(self, name):
        a, b = (search(ATTACKS[name], arena_for(ATTACKS[name], budget=10)) for _ in range(2))
        assert a.settings == b.settings
        for p, q in zip(a.points, b.points, strict=True):
            assert (p.steps, p.flops, p.validation, p.test) == (
                q.steps, q.flops, q.validation, q.test,
            )  # fmt: skip

    def test_leaves_the_model_and_the_global_generator_alone(self, name):
        arena = arena_for(ATTACKS[name], budget=5)
        before = {k: v.clone() for k, v in arena.cut.model.state_dict().items()}
        torch.manual_seed(5)
        search(ATTACKS[name], arena)
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
        for key, value in arena.cut.model.state_dict().items():
            assert torch.equal(value, before[key]), key
        assert not arena.cut.model.training

    def test_regression_works_or_is_refused_in_words(self, name):
        def values(seed):
            x, _ = (image_data if name in IMAGES else separable)(seed=seed)
            flat = x.reshape(len(x), -1)
            return x, flat[:, :2].astype(np.float64) * 2 + 1

        arena = arena_for(ATTACKS[name], data=values, kind="regression")
        if name == "logistic":
            with pytest.raises(NotApplicableError, match="classes"):
                search(ATTACKS[name], arena)
            return
        assert max(p.test for p in search(ATTACKS[name], arena).points) > 0.3


@pytest.mark.parametrize("name", ATTACKS)
def test_the_units_of_regression_targets_do_not_matter(name):
    if name == "logistic":
        return

    def values(factor):
        def data(seed):
            x, _ = (image_data if name in IMAGES else separable)(seed=seed)
            flat = x.reshape(len(x), -1)
            return x, factor * (flat[:, :1].astype(np.float64) * 2 + 5)

        return data

    found = [
        max(p.test for p in search(ATTACKS[name], arena_for(
            ATTACKS[name], data=values(factor), kind="regression", budget=50)).points)
        for factor in (1.0, 1e5)
    ]  # fmt: skip
    assert found[1] == pytest.approx(found[0], abs=0.05), name


@pytest.mark.parametrize(
    "name", ["earlier_layer", "concat_blocks", "reinit_last", "distil", "finetune_last"]
)
def test_one_stage_has_no_surgery(name):
    arena = arena_for(ATTACKS[name], model=torch.eye(6))
    with pytest.raises(NotApplicableError, match="one stage"):
        search(ATTACKS[name], arena)


@pytest.mark.parametrize(
    "name", ["drop_last", "invert_last", "pseudo_inverse", "reinit_directions"]
)
def test_features_that_no_linear_layer_makes_cannot_be_undone(name):
    arena = arena_for(ATTACKS[name], model=Residual().eval(), data=image_data)
    with pytest.raises(NotApplicableError, match="linear layer"):
        search(ATTACKS[name], arena)
