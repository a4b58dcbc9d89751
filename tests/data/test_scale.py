"""Columns of different scale: warned of by every verb, standardised by default in a recipe."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from immunis import ScaleWarning, Task, audit, immunize, measure, standardised
from immunis.data.scale import UNEVEN, unevenness
from immunis.recipes import load_recipe

SIZES = np.array([5e4, 12, 1.5, 0.2, 300, 1])
RECIPE = """
[data]
source = "npz"
primary = "p.npz"
harmful = "h.npz"
{}
[model]
{}
[method]
name = "erase"
"""


def table(seed, rows=200):
    """A table as people have them: the labels hang on a small column."""
    z = np.random.default_rng(seed).normal(size=(rows, 6))
    return z * SIZES + 10 * SIZES, (z[:, 3] > 0).astype(int)


def task(seed):
    return Task(table(seed), table(seed + 10), f"table {seed}")


@pytest.fixture
def recipe(tmp_path):
    def load(data="", model='init = "identity"'):
        for name, seed in (("p", 1), ("h", 2)):
            (x, y), (xt, yt) = table(seed), table(seed + 10)
            np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=xt, y_test=yt)
        (tmp_path / "own.toml").write_text(RECIPE.format(data, model))
        return load_recipe(tmp_path / "own.toml")

    return load


@pytest.mark.filterwarnings("ignore::immunis.RankWarning")
@pytest.mark.parametrize("form", [torch.eye(6), np.eye(6), nn.Linear(6, 6).eval(), None])
def test_every_verb_warns_of_columns_that_hide_others(form):
    if isinstance(form, nn.Linear):
        nn.init.eye_(form.weight)
    with pytest.warns(ScaleWarning, match=r"table 1: features differ .* immunis.standardised"):
        measure(task(1), task(2), form)
    if form is None:
        return
    with pytest.warns(ScaleWarning, match="table 1"):
        immunize(form, task(1), task(2), "erase", strength=0.1)
    few = {"seeds": 1, "budget": 5}
    with pytest.warns(ScaleWarning, match="table 1"):
        audit({"original": form}, task(1), task(2), attacks=["ridge"], effort=few)


@pytest.mark.filterwarnings("error::immunis.ScaleWarning")
def test_standardised_tasks_warn_of_nothing_and_show_what_was_hidden():
    primary, harmful = standardised(task(1), task(2))
    found = measure(primary, harmful)
    assert found.rho > 0.5
    immunize(torch.eye(6), primary, harmful, "erase")
    few = {"seeds": 1, "budget": 5}
    audit({"original": torch.eye(6)}, primary, harmful, attacks=["ridge"], effort=few)
    assert found.record.data["primary"]["standardised"] is True
    with pytest.warns(ScaleWarning):
        assert measure(task(1), task(2)).rho < 0.1


def test_the_first_task_decides_the_scale_of_all():
    primary, harmful = standardised(task(1), task(2))
    x = torch.from_numpy(table(1)[0])
    assert torch.allclose(primary.scale.mean, x.mean(0))
    for split, raw in ((primary.test, table(11)), (harmful.train, table(2))):
        expected = (torch.from_numpy(raw[0]) - x.mean(0)) / x.std(0, correction=0)
        torch.testing.assert_close(split.tensors()[0], expected)
    constant = torch.cat([x, torch.full_like(x[:, :1], 7.0)], 1)
    (found,) = standardised(Task((constant, torch.arange(len(x)) % 2)))
    assert not found.train.tensors()[0][:, 6].any()


def test_pixels_and_even_tables_are_no_uneven_ones(digit_tasks):
    assert unevenness(digit_tasks.primary.train.tensors()[0]) < UNEVEN
    assert unevenness(torch.randn(50, 4)) < 2
    assert unevenness(torch.ones(5, 3)) == 1.0
    assert unevenness(torch.randn(50, 2) * torch.tensor([1.0, 1e4])) > UNEVEN


@pytest.mark.parametrize("model", ['init = "identity"', "network = [8]"])
def test_a_recipe_standardises_by_default_and_says_so(recipe, model):
    with pytest.warns(ScaleWarning, match="of p differ in scale .* set standardise = false"):
        tasks = recipe(model=model).tasks()
    assert all(each.scale is not None for each in tasks[:3])
    assert unevenness(tasks.attacker.train.tensors()[0]) < 2


@pytest.mark.filterwarnings("error::immunis.ScaleWarning")
def test_a_recipe_may_say_which(recipe):
    assert recipe("standardise = false").tasks().primary.scale is None
    assert recipe("standardise = true").tasks().primary.scale is not None


def test_the_scale_is_written_beside_weights_that_need_it(run, recipe, tmp_path):
    recipe()
    done = run("immunize", "own.toml", "-o", "out")
    assert done.returncode == 0 and done.stderr.count("standardised") == 1
    found = load_file(tmp_path / "out" / "inputs.safetensors")
    assert found["mean"].shape == found["deviation"].shape == (6,)
