import copy
import json
import math
import re
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from helpers.networks import Residual
from immunis import Effort, InputError, SettingsError, Task, audit, immunize
from immunis.attacks import ATTACKS
from immunis.attacks.contract import Attack
from immunis.audits.feature_cache import Reader
from immunis.audits.statistics import (
    advantage,
    cost_to_reach,
    interval,
    residual_advantage,
    stopped,
    summarise,
    worst_case,
)
from immunis.data.sources import Tasks, digit_parity
from immunis.models.zoo import pretrained_mlp
from immunis.recipes import load_recipe
from immunis.recipes.pipeline import audit_recipe

F = torch.float64
FEW = ["ridge", "knn"]


@pytest.fixture(scope="module")
def tasks():
    return digit_parity(shots=60)


@pytest.fixture(scope="module")
def models(tasks):
    network = pretrained_mlp(tasks.primary, (32, 16), epochs=15)
    return {
        "original": network,
        "erase": immunize(network, tasks.primary, tasks.harmful, "erase", strength=0.0),
    }


def run(models, tasks, attacks=FEW, seeds=3, trials=None, defender=None, transfer=(), **where):
    effort = Effort(seeds, 20, trials)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return audit(
            models, tasks.primary, tasks.attacker, transfer, attacks, defender=defender,
            effort=effort, run=where,
        )  # fmt: skip


def timeless(result):
    """A record's JSON without what may differ from run to run."""
    values = json.loads(result.to_json())
    for key in ("created", "seconds", "commit"):
        values.pop(key)
    values["figures"].pop("seconds")
    return re.sub(r'"seconds": [^,}]*', '"seconds": 0', json.dumps(values))


@pytest.fixture(scope="module")
def result(models, tasks):
    return run(models, tasks, ["ridge", "knn", "drop_last"], defender=tasks.harmful)


def test_the_worst_case_leads(result):
    case = result.worst_case["erase"]
    assert case.attack in ("ridge", "knn", "drop_last")
    assert case.residual_advantage >= 0 or math.isnan(case.residual_advantage)
    assert 0 < case.accuracy <= case.highest_accuracy <= 1
    assert not case.broken
    row = result.record.figures["attacks"]["drop_last"]
    # what lies before the last linear map is the same in both, and so is what it allows
    assert row["erase"]["score"]["values"] == row["original"]["score"]["values"]
    kept = row["original"]["residual_advantage"]["mean"]
    assert math.isnan(kept) or kept == pytest.approx(1)


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
    assert score["low"] <= score["mean"] <= score["high"]
    assert {"steps", "samples", "flops", "seconds"} == set(ridge["erase"]["cost"])
    assert f["controls"]["from scratch"]["status"] == "done"
    assert f["disjoint"] == {"checked": True, "shared": 0, "train_in_test": 0}
    assert set(f["predictors"]) == {"kappa_harmful", "rir", "rho"}
    assert f["predictors"]["rho"]["pairs"] == 6
    assert json.loads(result.to_json())["kind"] == "audit"


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


def test_identical_seeds_give_identical_records_whatever_the_number_of_workers(models, tasks):
    one, again, two = (run(models, tasks, workers=w) for w in (1, 1, 2))
    assert timeless(one) == timeless(again) == timeless(two)


@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster_gives_the_same_record(models, tasks):
    ray = pytest.importorskip("ray")
    try:
        assert timeless(run(models, tasks, cluster="local", workers=2)) == timeless(
            run(models, tasks)
        )
    finally:
        ray.shutdown()


def test_finished_attacks_are_not_repeated(models, tasks, tmp_path, monkeypatch):
    first = run(models, tasks, folder=tmp_path)
    count = len(list(tmp_path.glob("*.json")))
    monkeypatch.setattr(sys.modules["immunis.attacks.search"], "search", lambda *_: 1 / 0)
    assert timeless(run(models, tasks, folder=tmp_path)) == timeless(first)
    assert len(list(tmp_path.glob("*.json"))) == count


def test_an_interrupted_audit_goes_on_where_it_stopped(models, tasks, tmp_path, monkeypatch):
    module = sys.modules["immunis.attacks.search"]
    real, calls = module.search, []

    def stops(*arguments):
        calls.append(1)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, "search", stops)
    with pytest.raises(KeyboardInterrupt):
        run(models, tasks, folder=tmp_path)
    kept = len(list(tmp_path.glob("*.json")))
    assert kept == 4
    monkeypatch.setattr(module, "search", real)
    calls.clear()
    assert timeless(run(models, tasks, folder=tmp_path)) == timeless(run(models, tasks))


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


def test_collapsed_features_are_broken_not_a_crash(models, tasks):
    dead = copy.deepcopy(models["original"])
    with torch.no_grad():
        dead[2].weight.zero_()
        dead[2].bias.zero_()
    found = run({**models, "dead": dead}, tasks, ["ridge"], seeds=1)
    assert found.worst_case["dead"].broken
    assert math.isnan(found.record.figures["models"]["dead"]["kappa_harmful"])


def test_shared_rows_of_the_attackers_own_data_are_counted(models, tasks):
    x, y = tasks.attacker.train.tensors()
    leaky = Task((x, y), (x[:10], y[:10]), "leaky")
    with pytest.warns(UserWarning, match="10 sample"):
        found = audit(models, tasks.primary, leaky, attacks=["ridge"], effort=Effort(1, 5))
    assert found.record.figures["disjoint"]["train_in_test"] == 10


def test_odd_files_in_the_folder_are_run_again(models, tasks, tmp_path):
    first = run(models, tasks, ["ridge"], folder=tmp_path, seeds=1)
    for text, path in zip(
        ("null", "{}", "[]", '{"status": "done"}'), sorted(tmp_path.iterdir()), strict=False
    ):
        path.write_text(text)
    assert timeless(run(models, tasks, ["ridge"], folder=tmp_path, seeds=1)) == timeless(first)


def test_a_shuffling_loader_resumes_all_the_same(models, tasks, tmp_path):
    train, test = (TensorDataset(*s.tensors()) for s in (tasks.attacker.train, tasks.attacker.test))
    for _ in range(2):
        loader = DataLoader(train, batch_size=16, shuffle=True)
        task = Task(loader, DataLoader(test, batch_size=64), "attacker")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            audit(
                models,
                tasks.primary,
                task,
                attacks=["ridge"],
                effort=Effort(1, 5),
                run={"folder": tmp_path},
            )
        count = len(list(tmp_path.iterdir()))
    assert count == 4  # two models, the control, and the control from scratch


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


def test_the_bundled_recipe_runs(monkeypatch):
    recipe = load_recipe("digit-parity")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = audit_recipe(recipe, attacks=["ridge"], effort={"budget": 20})
    assert list(found.record.figures["models"]) == ["original", "condition", "frontier", "erase"]
    assert found.record.settings["recipe"]["model"] == {"network": [128, 64]}
    assert found.record.figures["transfer"]


# Verdicts by hand.


def curve(*points):
    keys = ("steps", "validation", "test")
    rest = {"samples": 1, "flops": 1.0, "seconds": 0.0}
    return [{**rest, **dict(zip(keys, p, strict=True))} for p in points]


def test_an_attacker_stops_where_validation_is_best():
    kept = stopped(curve((1, 0.5, 0.4), (2, 0.9, 0.8), (5, 0.7, 0.95)))
    assert [p["score"] for p in kept] == [0.4, 0.8, 0.8]
    assert cost_to_reach(kept, 0.8)["steps"] == 2
    assert cost_to_reach(kept, 0.81)["steps"] == math.inf


def done(*points):
    return {"status": "done", "curve": curve(*points), "settings": {}, "trials": 1, "runs": 1,
            "search_flops": 1.0, "seconds": 0.1}  # fmt: skip


def test_advantage_cost_and_multiplier_by_hand():
    outcomes = {
        "original": [done((1, 0.5, 0.5), (10, 0.9, 0.9))] * 3,
        "slow": [done((1, 0.2, 0.2), (100, 0.9, 0.9))] * 3,
        "safe": [done((1, 0.2, 0.2), (100, 0.3, 0.3))] * 3,
        "untrained": [done((1, 0.1, 0.1), (100, 0.4, 0.4))] * 3,
    }
    rows = summarise(outcomes, "original", "untrained", chance=0.1)
    assert rows["slow"]["residual_advantage"]["mean"] == pytest.approx(1)
    assert rows["slow"]["multiplier"]["steps"] == 10
    assert rows["safe"]["residual_advantage"]["mean"] == 0
    assert rows["safe"]["multiplier"]["steps"] == math.inf
    assert [p["steps"] for p in rows["slow"]["curve"]] == [1, 100]
    case = worst_case({"x": rows}, "slow", "original", "untrained")
    assert (case["attack"], case["residual_advantage"]) == ("x", pytest.approx(1))
    assert case["gain"] == pytest.approx(0.5)


def test_the_interval_of_an_advantage_is_students_and_none_for_one_seed():
    def kept(**scores):
        outcomes = {name: [done((1, s, s)) for s in of] for name, of in scores.items()}
        return summarise(outcomes, "original", "untrained", 0.0)["safe"]["residual_advantage"]

    found = kept(original=(0.9,) * 3, safe=(0.4, 0.5, 0.6), untrained=(0.1,) * 3)
    reach = 4.30265 * 0.1 / 3**0.5 / 0.8  # t of two degrees of freedom
    assert found["mean"] == pytest.approx(0.5)
    assert found["high"] - found["mean"] == pytest.approx(reach, rel=1e-4)
    about_nothing = kept(original=(0.9,) * 3, safe=(0.0, 0.1, 0.2), untrained=(0.1,) * 3)
    assert about_nothing["mean"] == about_nothing["low"] == 0
    assert about_nothing["high"] == pytest.approx(reach, rel=1e-4)  # of shares not clipped before
    with pytest.raises(InputError, match="scores of \\[3, 2, 2\\] seeds"):
        advantage([0.5, 0.6, 0.7], [0.9, 0.9], [0.1, 0.1])
    below = kept(original=(0.9,) * 3, safe=(0.0, 0.01, 0.02), untrained=(0.1,) * 3)
    assert below == {"mean": 0, "low": 0, "high": 0}
    alone = kept(original=(0.9,), safe=(0.5,), untrained=(0.1,))
    assert alone["mean"] == pytest.approx(0.5) and math.isnan(alone["low"])


def test_the_worst_case_is_the_largest_residual_advantage():
    def rows(original, defended, untrained):
        by_model = {"o": original, "d": defended, "u": untrained}
        return summarise({k: [done((1, v, v))] * 3 for k, v in by_model.items()}, "o", "u", 0.1)

    table = {
        "a": rows(0.95, 0.7, 0.5),
        "b": rows(0.8, 0.8, 0.65),
        "no help": rows(0.5, 0.9, 0.5),
        "broke": {"d": {"status": "failed", "reason": ""}},
    }
    case = worst_case(table, "d", "o", "u")
    assert (case["attack"], case["residual_advantage"]) == ("b", pytest.approx(1))
    assert (case["highest_attack"], case["highest_accuracy"]) == ("no help", pytest.approx(0.9))
    assert (case["attacks"], case["undefined"], case["failed"]) == (3, 1, 1)


def test_no_help_means_no_share_and_noise_is_shown_not_hidden():
    assert math.isnan(residual_advantage(0.5, 0.4, 0.4))
    assert math.isnan(residual_advantage(0.5, 0.9, -math.inf))
    row = summarise({"o": [done((1, 0.1, 0.1))] * 3}, "o", "u", chance=0.2)["o"]
    assert "does not beat chance" in row["notes"][0]
    assert residual_advantage(0.9, 0.8, 0.4) == pytest.approx(1.25)
    noisy = {
        "original": [done((1, t, t)) for t in (0.9, 0.5, 0.7)],
        "defended": [done((1, t, t)) for t in (0.8, 0.6, 0.7)],
        "untrained": [done((1, t, t)) for t in (0.7, 0.6, 0.5)],
    }
    row = summarise(noisy, "original", "untrained", 0.5)["defended"]["residual_advantage"]
    assert row["mean"] == pytest.approx(1)
    assert row["high"] - row["low"] > 0.5


def test_an_attack_that_failed_on_the_original_has_no_comparison():
    rows = summarise(
        {"original": [{"status": "failed", "reason": "x"}], "d": [done((1, 1.0, 1.0))]},
        "original", "untrained", 0.1,
    )  # fmt: skip
    assert rows["original"]["status"] == "failed"
    assert "cost" not in rows["d"]
    none = worst_case({"x": {}}, "d", "original", "untrained")
    assert none["attack"] is None


def test_intervals():
    assert interval([])["mean"] != interval([])["mean"]
    assert math.isnan(interval([0.5])["low"])  # one run says nothing of its spread
    row = interval([0.1, 0.2, 0.3])
    assert row["low"] == pytest.approx(0.2 - 4.303 * 0.1 / 3**0.5, abs=1e-3)


# Sweeps.


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
    with pytest.raises(InputError, match="2 models came for 3 seeds"):
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
