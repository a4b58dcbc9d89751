"""The default defence: ρ at every depth, the rule of its training, where it starts."""

import dataclasses

import pytest
import torch
from torch import nn

from helpers.networks import image_task, small_net, tasks
from helpers.training import SHORT, objective, run, whole
from immunis import RankWarning, SettingsError, Task, immunize
from immunis.methods import get_method
from immunis.methods.immunize import training_for
from immunis.methods.probe import ROWS, depths, visible
from immunis.models.zoo import small_cnn
from immunis.theory.probes import rho
from immunis.training.loop import fit
from immunis.training.objective import supervised_only
from immunis.training.settings import Training

WEIGHTED = {"weight": 3.0}


def pretrained(model=None):
    pre = Training(layers=["*"], epochs=6, batch=32, rate=1e-2, batchnorm="update")
    return fit(whole(model), supervised_only(), tasks()[0], None, pre).model


def test_it_hides_the_harmful_labels_at_every_depth_and_keeps_the_primary_task():
    primary, harmful = tasks()
    original = pretrained(small_cnn(primary, [8, 16, 16]))  # blocks that end in a ReLU
    inputs, labels = harmful.train.tensors()
    targets = harmful.targets(labels)

    def shares(model):
        found = [model[: place + 1](inputs).detach() for place in range(3)]  # behind the ReLU
        grids = [nn.functional.adaptive_avg_pool2d(maps, 2).flatten(1) for maps in found]
        return [float(rho(z, targets, 1e-2)) for z in (*grids, found[-1].mean((2, 3)))]

    how = Training(
        layers=["*"], steps=120, batch=64, harmful_batch=135, rate=0.05, optimizer="sgd",
        batchnorm="joint", tolerance=0.1, warmup=0.2, clip=5.0,
    )  # fmt: skip
    part = whole(original)
    result = fit(part, objective("probe", part, weight=10.0), primary, harmful, how)
    for before, after in zip(shares(original), shares(result.model), strict=True):
        assert after < 0.7 * before
    assert result.history[-1]["primary"] > 0.8


def test_depths_are_the_features_and_stages_evenly_spread():
    class Deep(nn.Sequential):
        def __init__(self, count):
            super().__init__(
                nn.Flatten(),
                nn.Linear(192, 8),
                nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(count))),
                nn.Linear(8, 4),
            )

    part = whole(Deep(12).eval())
    found = depths(part, 4)
    assert found[0] == "" and all(name.endswith(":grid") for name in found[1:])
    places = [part.stages.index(name.removesuffix(":grid")) for name in found[1:]]
    assert places == [3, 6, 9, 12] and len(part.stages) == 13
    assert len(depths(part, 99)) == 14
    assert depths(part, 1)[1:] == (part.stages[-1] + ":grid",)


def test_wide_features_of_labels_at_random_do_not_look_readable():
    draws = torch.Generator().manual_seed(0)
    z = torch.randn(120, 500, generator=draws)
    y = nn.functional.one_hot(torch.randint(2, (120,), generator=draws), 2).double()
    assert rho(z, y) > 0.9  # more features than rows
    torch.manual_seed(1)
    found = visible(z, y)
    assert 0 < found < 1.5 / ROWS
    assert visible(z, y) == found  # one draw a step
    torch.manual_seed(2)
    assert visible(z, y) != found


def test_a_weight_of_zero_is_the_same_training_without_the_defence():
    goal = objective("probe", weight=0.0)
    assert goal.judge == "primary" and goal.weights["rho"] == 0.0
    result = run("probe", settings={"weight": 0.0})
    assert set(result.weights) == {"supervised", "distillation", "rho"}
    best = max(result.history[1:], key=lambda row: row["primary"])
    assert (
        next(r for r in result.history if r["step"] == result.best_step)["primary"]
        == (best["primary"])
    )


def test_the_length_and_the_rate_follow_from_data_and_model():
    def rule(model, primary, given=None):
        return training_for(get_method("probe"), given, model, primary)

    few, many = image_task(200), image_task(20_000)
    assert rule(small_net(), few).steps == 300  # at least
    assert rule(small_net(), many).steps == 2500  # at most
    assert rule(small_net(), image_task(5000)).steps == 40 * 20
    normed, plain = rule(small_net(), few), rule(nn.Sequential(nn.Linear(4, 4)), few)
    assert (normed.optimizer, normed.rate) == ("sgd", 0.2)
    assert (plain.optimizer, plain.rate) == ("adamw", 1e-3)
    assert normed.batchnorm == "joint" and list(normed.layers) == ["*"]
    assert not normed.augment and rule(small_net(), image_task(40, size=32)).augment
    assert rule(small_net(), few, {"epochs": 2}).steps is None
    assert rule(small_net(), few, {"rate": 0.1}).rate == 0.1
    own = Training(steps=7)
    assert rule(small_net(), few, own) is own
    text = Task((torch.zeros(40, 6, dtype=torch.int64), torch.arange(40) % 2))
    reads = rule(nn.Sequential(nn.Embedding(9, 4)), text)
    assert not reads.augment and (reads.optimizer, reads.rate) == ("adamw", 1e-4)


@pytest.mark.parametrize(("start", "moved"), [("given", 0.0), ("noised", 0.6), ("fresh", 1.0)])
def test_it_starts_where_it_is_told(start, moved):
    original = pretrained()
    how = dataclasses.replace(
        SHORT, layers=["*"], steps=1, evaluate=1, rate=1e-12, optimizer="sgd", tolerance=1.0,
        batchnorm="freeze",
    )  # fmt: skip
    goal = objective("probe", start=start, **WEIGHTED)
    result = fit(whole(original), goal, *tasks(), how, seed=4)
    given, found = (m.state_dict() for m in (original, result.model))
    kernels = [name for name, p in given.items() if p.ndim > 1]
    apart = [float((found[n] - given[n]).norm() / given[n].norm()) for n in kernels]
    assert max(apart) < 1e-6 if start == "given" else min(apart) > 0.5 * moved
    if start != "given":
        first = fit(whole(small_net(seed=9)), goal, *tasks(), how, seed=4).model.state_dict()
        same = all(torch.allclose(found[n], first[n], atol=1e-6) for n in found)
        assert same == (start == "fresh")  # nothing of the original is left
    assert result.history[0]["primary"] > 0.8  # the original's score, which is to be kept


def test_what_cannot_be_is_refused():
    with pytest.raises(SettingsError, match="depths=0: expected .* >= 1"):
        objective("probe", depths=0)
    with pytest.raises(SettingsError, match="weight=-1"):
        objective("probe", weight=-1.0)
    with pytest.raises(SettingsError, match="start"):
        objective("probe", start="old")
    with pytest.raises(SettingsError, match=r"tolerance .*trained networks"):
        immunize(torch.eye(192), *tasks(), tolerance=0.01)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_by_default_a_network_is_defended_as_strongly_as_its_price_allows(tmp_path):
    shorter = {"steps": 30, "batch": 64, "harmful_batch": 135, "rate": 0.05, "held_out": 0.3}
    given = pretrained()
    result = immunize(given, *tasks(), tolerance=0.05, training=shorter, folder=tmp_path, seed=1)
    said, figures = result.record.settings, result.record.figures
    assert said["method"] == "probe" and said["training"]["tolerance"] == 0.05
    tried = figures["details"]["weights_tried"]
    assert [row["weight"] for row in tried[:2]] == [0.0, 3.0]
    assert said["weight"] in [row["weight"] for row in tried[1:]]
    assert figures["details"]["primary_to_keep"] == tried[0]["primary"]
    price, after = figures["details"]["price"], figures["primary_score"]["after"]
    assert price["mean"] == pytest.approx(after - price["plain"]) and price["rows"] == 100
    assert price["low"] <= price["mean"] <= price["high"]
    table = str(result)
    assert "weights tried: 0, 3" in table and "less the same training without it" in table
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {f"weight-{row['weight']:g}" for row in tried}
    again = immunize(given, *tasks(), tolerance=0.05, training=shorter, folder=tmp_path,
                     seed=1, resume=True)  # fmt: skip
    for one, two in zip(result.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_wide_features_are_projected_so_few_harmful_rows_are_no_fault_of_rho():
    few = dataclasses.replace(SHORT, harmful_batch=12)
    assert not any("12 harmful" in note for note in run("probe", few, WEIGHTED).notes)
    with pytest.warns(RankWarning, match=r"12 harmful .* in 16 dimensions.*harmful_batch above 16"):
        assert any("accumulate=3" in note for note in run("r_ill", few).notes)


def test_joined_statistics_are_one_for_both_tasks_and_hold_at_evaluation():
    primary, harmful = tasks()
    harmful = Task((harmful.train.tensors()[0] + 3, harmful.train.tensors()[1]), name="shifted")
    model, seen = small_net(), []
    model[1].register_forward_hook(
        lambda norm, given, _: seen.append(given[0].detach()) if norm.training else None
    )
    how = Training(layers=["*"], steps=60, batch=90, harmful_batch=90, rate=1e-12,
                   optimizer="sgd", batchnorm="joint", tolerance=1.0, evaluate=1)  # fmt: skip
    found = fit(whole(model), objective("probe", **WEIGHTED), primary, harmful, how).model[1]
    assert {len(rows) for rows in seen} == {180}  # one pass, one mean and one variance
    batch = torch.cat(seen[-20:])
    assert float((batch[:90].mean() - batch[90:180].mean()).abs()) > 0.1  # the tasks differ
    answers = found.eval()(batch)
    assert float(answers.mean((0, 2, 3)).abs().max()) < 0.05
    assert float((answers.var((0, 2, 3)) - 1).abs().max()) < 0.1
    seen.clear()
    fit(whole(model), objective("r_ill"), primary, harmful,
        dataclasses.replace(how, batchnorm="update", steps=2))  # fmt: skip
    assert {len(rows) for rows in seen} == {90}  # each task alone
