"""An audit as a whole."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from helpers.audits import FEW, run
from helpers.networks import Residual
from immunis import Effort, InputError, SettingsError, Task, audit
from immunis.attacks import ATTACKS
from immunis.attacks.contract import Attack
from immunis.data.sources import Tasks
from immunis.recipes import load_recipe
from immunis.recipes.pipeline import audit_recipe

F = torch.float64


def test_the_worst_case_is_the_attack_that_keeps_most_of_the_originals_help(result):
    table, case = result.record.figures["attacks"], result.worst_case["erase"]
    kept = {name: rows["erase"]["residual_advantage"]["mean"] for name, rows in table.items()}
    kept = {name: share for name, share in kept.items() if not math.isnan(share)}
    assert case.residual_advantage == kept[case.attack] == max(kept.values())
    scores = {name: rows["erase"]["score"]["mean"] for name, rows in table.items()}
    assert case.accuracy == scores[case.attack]
    assert case.highest_accuracy == scores[case.highest_attack] == max(scores.values())
    assert not case.broken


def test_what_lies_before_the_last_linear_map_is_the_same_in_both(result):
    row = result.record.figures["attacks"]["drop_last"]
    assert row["erase"]["score"]["values"] == row["original"]["score"]["values"]


def test_the_record_holds_what_was_asked(result, models):
    f = result.record.figures
    assert set(f["models"]) == set(models)
    for row in f["models"].values():
        assert {"primary", "kappa_primary", "kappa_harmful", "rir", "rho", "broken"} <= set(row)
    assert f["models"]["original"]["rir"] == pytest.approx(1)
    ridge = f["attacks"]["ridge"]
    assert set(ridge) == {"original", "erase", "untrained"}
    score = ridge["erase"]["score"]
    assert len(score["values"]) == 3
    assert score["mean"] == pytest.approx(sum(score["values"]) / 3)
    assert {"steps", "samples", "flops", "seconds"} == set(ridge["erase"]["cost"])
    assert f["controls"]["from scratch"]["status"] == "done"
    assert f["disjoint"] == {"checked": True, "shared": 0, "train_in_test": 0}
    assert set(f["predictors"]) == {"kappa_harmful", "rir", "rho"}
    assert f["predictors"]["rho"]["pairs"] == 6
    assert json.loads(result.to_json())["kind"] == "audit"


def test_a_failing_attack_is_recorded_and_the_audit_goes_on(models, tasks, monkeypatch, tmp_path):
    def fails(arena, settings):
        raise RuntimeError("no luck")

    monkeypatch.setitem(ATTACKS, "knn", Attack(fails, name="knn"))
    f = run(models, tasks).record.figures
    assert f["attacks"]["knn"]["erase"] == {"status": "failed", "reason": "RuntimeError: no luck"}
    assert f["attacks"]["ridge"]["erase"]["status"] == "done"
    assert f["worst_case"]["erase"]["attack"] == "ridge"
    run(models, tasks, folder=tmp_path)
    statuses = {json.loads(p.read_text())["result"]["status"] for p in tmp_path.glob("*.json")}
    assert statuses == {"done"}  # a failure is tried again next time


def test_transfer_tasks_are_probed_and_fine_tuned(models, tasks):
    f = run(models, tasks, ["ridge"], transfer=tasks.transfer, seeds=1).record.figures
    rows = f["transfer"]["at least five"]
    assert set(rows) == {"gd_line_search", "finetune_all"}
    assert rows["finetune_all"]["erase"]["score"]["mean"] > 0.4
    assert "multiplier" in rows["gd_line_search"]["erase"]


def test_linear_extractors_and_regression_can_be_audited(quiet_rank):
    def values(seed, name):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(80, 5, generator=generator, dtype=F)
        y = x[:, :2] @ torch.ones(2, 1, dtype=F)
        return Task((x[:60], y[:60]), (x[60:], y[60:]), name)

    found = audit(
        {"original": torch.eye(5, dtype=F)}, values(0, "p"), values(1, "h"),
        attacks=["ridge", "logistic", "drop_last"], effort=Effort(2, 20),
    )  # fmt: skip
    f = found.record.figures
    assert f["attacks"]["ridge"]["original"]["score"]["mean"] > 0.99
    assert f["attacks"]["logistic"]["original"]["status"] == "not applicable"
    assert f["chance"] == 0


def test_convolutional_networks_can_be_audited():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = rng.normal(size=(60, 1, 8, 8)).astype(np.float32) + y[:, None, None, None]
    task = Task((x[:45], y[:45]), (x[45:], y[45:]), "images")
    other = Task((x[:45] + 1, y[:45]), (x[45:] + 1, y[45:]), "others")
    names = ["ridge", "earlier_layer", "renormalise", "batchnorm_only"]
    f = run(
        {"original": Residual().eval()}, Tasks(task, task, other), names, seeds=1
    ).record.figures
    assert all(rows["original"]["status"] == "done" for rows in f["attacks"].values())


def test_optuna_can_tune_the_attacks(models, tasks):
    pytest.importorskip("optuna")
    found = run({"original": models["original"]}, tasks, ["ridge"], trials=3, seeds=1)
    assert found.record.settings["search"] == "optuna, 3 trials"
    assert found.record.figures["attacks"]["ridge"]["original"]["trials"] == 3


@pytest.mark.filterwarnings("ignore")
def test_bad_requests_are_refused_in_words(models, tasks):
    good = (tasks.primary, tasks.attacker)
    x, y = tasks.attacker.train.tensors()
    one = Task((x, 0 * y), (x, 0 * y), "one")
    cases = [
        (lambda: audit(models, *good, defender=tasks.attacker, attacks=FEW), InputError, "also in"),
        (lambda: audit(models, tasks.primary, one, attacks=FEW), InputError, "single class"),
        (lambda: audit(models, tasks.primary, Task((x, y)), attacks=FEW), InputError, "test data"),
        (lambda: audit({"a": models["original"]}, *good), InputError, "original"),
        (lambda: audit({}, *good), InputError, "none"),
        (lambda: audit(models["original"], *good), InputError, "expected them by name"),
        (lambda: audit(torch.eye(64), *good), InputError, "came as a Tensor"),
        (lambda: audit({**models, "untrained": 1}, *good), InputError, "own controls"),
        (lambda: audit({"original": nn.Linear(64, 8)}, *good), InputError, "training mode"),
        (lambda: audit(models, *good, attacks="quik"), SettingsError, "quick"),
        (
            lambda: audit(models, *good, attacks=FEW, effort={"seeds": 0}),
            SettingsError,
            "at least 1",
        ),
        (lambda: audit(models, *good, attacks=FEW, run={"workers": 0}), SettingsError, "workers"),
        (
            lambda: audit(models, *good, attacks=FEW, effort={"trials": 0}),
            SettingsError,
            "trials=0",
        ),
        (
            lambda: audit(models, *good, attacks=FEW, run={"device": "cuda:99"}),
            SettingsError,
            "device",
        ),
        (lambda: audit(models, *good, attacks=FEW, run={"device": "gpu"}), SettingsError, "device"),
        (lambda: audit(models, tasks.primary, tasks.primary, attacks=FEW), InputError, "also in"),
    ]
    for call, error, says in cases:
        with pytest.raises(error, match=says):
            call()
    nan = nn.Linear(64, 8).eval()
    nan.weight.data[0, 0] = float("nan")
    with pytest.raises(InputError, match="bad gives NaN or infinite features"):
        audit({**models, "bad": nan}, *good, attacks=FEW)


def test_the_bundled_recipe_runs(monkeypatch):
    recipe = load_recipe("digit-parity")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = audit_recipe(recipe, attacks=["ridge"], effort={"budget": 20})
    assert list(found.record.figures["models"]) == ["original", "condition", "frontier", "erase"]
    assert found.record.settings["recipe"]["model"] == {"network": [128, 64]}
    assert found.record.figures["transfer"]


def _network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def test_a_defence_may_come_as_one_model_for_each_seed(pair):
    primary, harmful = pair
    models = {"original": _network(0), "several": [_network(1), _network(2)]}
    found = audit(models, primary, harmful, attacks=["ridge"], effort=Effort(2, 3))
    row = found.record.figures["models"]["several"]
    assert [v["primary"] for v in row["variants"]] != [row["variants"][0]["primary"]] * 2
    assert row["primary"] == pytest.approx(sum(v["primary"] for v in row["variants"]) / 2)
    assert len(row["per_class"]) == 3 and "per_class" not in row["variants"][0]
    alone = [
        audit(
            {"original": _network(0), "x": m}, primary, harmful, attacks=["ridge"], effort=Effort(2)
        )
        for m in models["several"]
    ]
    curves = found.record.figures["attacks"]["ridge"]["several"]["score"]["values"]
    assert curves == [
        alone[seed].record.figures["attacks"]["ridge"]["x"]["score"]["values"][seed]
        for seed in range(2)
    ]
    with pytest.raises(InputError, match="2 models for 3 seeds"):
        audit(models, primary, harmful, attacks=["ridge"])


def test_the_searched_space_may_be_narrowed(pair):
    primary, harmful = pair
    models = {"original": _network(0)}
    attacks = ["finetune_all"]
    whole = audit(models, primary, harmful, attacks=attacks, effort=Effort(1, 2)).record
    few = Effort(1, 2, space={"optimizer": ["adamw"]})
    part = audit(models, primary, harmful, attacks=attacks, effort=few).record
    trials = [r.figures["attacks"]["finetune_all"]["original"]["trials"] for r in (whole, part)]
    assert trials[1] == trials[0] / 2
    assert part.settings["space"] == {"optimizer": ["adamw"]}
    with pytest.raises(SettingsError, match="space leaves none of them"):
        audit(models, primary, harmful, attacks=attacks, effort={"space": {"optimizer": ["lion"]}})
