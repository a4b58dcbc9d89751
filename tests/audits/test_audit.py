"""An audit as a whole."""

import json
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from helpers.audits import FEW, run, timeless
from helpers.networks import Residual
from immunis import Effort, InputError, OutputError, SettingsError, Task, audit
from immunis.attacks import ATTACKS
from immunis.attacks.contract import Attack
from immunis.audits.disjoint import disjoint_rows
from immunis.audits.lineup import Variant
from immunis.core.hashing import state_digest
from immunis.core.packing import unpacked
from immunis.data.task import Tasks
from immunis.recipes import load_recipe
from immunis.recipes.pipeline import Pipeline
from immunis.report.format import steps_of
from immunis.theory.score_interval import finest

F = torch.float64


def _reader(width, noise, seed=1):
    """A network that reads the first features alone, more or less, and has a head."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(40, width), nn.Linear(width, 3)).eval()
    with torch.no_grad():
        network[0].weight.copy_(torch.eye(width, 40) + noise * torch.randn(width, 40))
    return network


def test_the_worst_case_leads_with_points_and_has_the_largest_share():
    def task(seed):
        rng, y = np.random.default_rng(seed), np.arange(400) % 3
        x = rng.normal(size=(400, 40)) + 3 * np.eye(3, 40)[y]
        return Task((x[:60], y[:60]), (x[60:], y[60:]), f"task {seed}")

    models = {"original": _reader(3, 0.0), "erase": _reader(3, 0.5)}
    attacks, effort = ["ridge", "knn", "drop_last"], Effort(1, 5)
    result = audit(models, task(1), task(2), attacks=attacks, effort=effort)
    table, case = result.record.figures["attacks"], result.worst_case["erase"]
    gains = {name: rows["erase"]["above_untrained"]["mean"] for name, rows in table.items()}
    assert case.gain == gains[case.attack] == max(gains.values())
    kept = {name: rows["erase"]["residual_advantage"]["mean"] for name, rows in table.items()}
    kept = {name: share for name, share in kept.items() if share is not None}
    assert case.residual_advantage == kept[case.share_attack] == max(kept.values())
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
    weights = {name: row["weights"] for name, row in f["models"].items()}
    assert weights["original"] == state_digest(models["original"]) != weights["erase"]
    families = result.record.settings["families"]
    assert families["ridge"] == "probes" and families["drop_last"] == "surgery"
    assert list(families) == sorted(families, key=list(ATTACKS).index)
    assert set(families) == set(result.record.settings["attacks"])
    ridge = f["attacks"]["ridge"]
    assert set(ridge) == {"original", "erase", "untrained"}
    score = ridge["erase"]["score"]
    assert len(score["values"]) == 3
    assert score["mean"] == pytest.approx(sum(score["values"]) / 3)
    assert {"steps", "samples", "flops", "seconds"} == set(ridge["erase"]["cost"])
    assert f["controls"]["from scratch"]["status"] == "done"
    found = dict(f["disjoint"])
    compared, nearest = found.pop("compared"), found.pop("nearest")
    assert found == {"checked": True, "shared": 0, "train_in_test": 0, "tolerance": 1e-6}
    assert len(compared["sets"]) == len(compared["rows"]) == 4 and "spread" in compared["unit"]
    assert not nearest["suspicious"] and 0 < nearest["minimum"] <= nearest["quantile"]
    assert f["predictors"] is None  # of two models
    rows = f["scored"]["rows"]
    assert f["scored"]["half"] == "development" and rows < f["scored"]["of"]
    for hits, value in zip(ridge["erase"]["hits"], score["values"], strict=True):
        assert hits["rows"] == rows and unpacked(hits).mean() == pytest.approx(value)
    assert ridge["erase"]["above_original"]["mean"] == pytest.approx(
        score["mean"] - ridge["original"]["score"]["mean"]
    )
    few = "no claim (fewer than 5 different runs, fewer than 3 different trainings)"
    assert f["factors"]["models"]["erase"] == {"variants": 1, "runs": 3, "claim": few}
    assert f["factors"]["attackers"] == {"samples": 3, "rows": 48, "of": 60}
    change = f["models"]["erase"]["primary_change"]["original"]
    lost = f["models"]["erase"]["primary"] - f["models"]["original"]["primary"]
    assert change["mean"] == pytest.approx(lost) and change["tolerance"] == 0.005
    least = finest(f["models"]["erase"]["primary_hits"][0]["rows"])
    assert change["finest"] == pytest.approx(least) and least > 0.005
    assert change["holds"] is None and change["low"] == pytest.approx(-least)  # no answer changed
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
        (lambda: audit(models, *good, ["ridge"]), InputError, "names of attacks go with attacks="),
        (lambda: audit(models, *good, None), InputError, "expected a list of Tasks"),
        (lambda: audit(models, (x, y), tasks.attacker), InputError, "primary: expected a Task"),
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
    recipe = replace(recipe, audit={**recipe.audit, "budget": 5, "seeds": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Pipeline(recipe, recipe.tasks()).audit(["ridge"])
    assert list(found.record.figures["models"]) == ["original", "condition", "frontier", "erase"]
    assert found.record.settings["recipe"]["model"] == {"network": [128, 64]}
    assert found.record.figures["transfer"]


def _network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def test_every_variant_of_a_model_meets_every_seed(pair):
    primary, harmful = pair
    models = {"original": _network(0), "several": [_network(i) for i in (1, 2, 3)]}
    found = audit(models, primary, harmful, attacks=["ridge"], effort=Effort(2, 3)).record
    row = found.figures["models"]["several"]
    assert [v["primary"] for v in row["variants"]] != [row["variants"][0]["primary"]] * 3
    assert row["primary"] == pytest.approx(sum(v["primary"] for v in row["variants"]) / 3)
    assert len(row["per_class"]) == 3 and "per_class" not in row["variants"][0]
    assert len(row["primary_hits"]) == 3
    expected = []
    for model in models["several"]:
        alone = {"original": _network(0), "x": model}
        alone = audit(alone, primary, harmful, attacks=["ridge"], effort=Effort(2, 3)).record
        expected += alone.figures["attacks"]["ridge"]["x"]["score"]["values"]
    assert found.figures["attacks"]["ridge"]["several"]["score"]["values"] == expected
    counts = found.figures["factors"]["models"]
    assert counts["several"] == {"variants": 3, "runs": 6, "claim": None}
    assert counts["untrained"] == {"variants": 2, "runs": 4, "claim": None}
    assert len(found.figures["attacks"]["ridge"]["untrained"]["score"]["values"]) == 4


def test_each_of_several_attackers_has_rows_of_its_own_and_the_control_is_drawn_thrice(pair):
    primary, harmful = pair
    models = {"original": [_network(0)], "copies": [_network(1)] * 5}
    several = audit(models, primary, harmful, attacks=["ridge"], effort=Effort(5, 3)).record
    factors = several.figures["factors"]
    rows = factors["attackers"]["of"]
    assert factors["attackers"] == {"samples": 5, "rows": rows - rows // 5, "of": rows}
    scores = several.figures["attacks"]["ridge"]["original"]["score"]
    assert len(set(scores["values"])) > 1  # a closed form, on other rows each time
    assert "fewer than 3 different trainings" in factors["models"]["copies"]["claim"]
    assert factors["models"]["untrained"] == {"variants": 1, "runs": 5, "claim": None}
    one = audit(models, primary, harmful, attacks=["ridge"], effort=Effort(1, 3)).record.figures
    assert one["factors"]["attackers"] == {"samples": 1, "rows": rows, "of": rows}
    assert "one sample of the attacker's rows" in one["factors"]["models"]["original"]["claim"]
    assert one["factors"]["models"]["untrained"] == {"variants": 3, "runs": 3, "claim": None}
    assert len(set(one["attacks"]["ridge"]["untrained"]["score"]["values"])) > 1


def test_originals_may_be_several_and_each_variant_is_compared_with_its_own(pair):
    primary, harmful = pair
    originals = [_network(0), _network(1)]
    told = [Variant(_network(1), 1), Variant(_network(0), 0), Variant(_network(1), 1)]
    models = {"original": originals, "same": told}
    figures = audit(models, primary, harmful, attacks=["ridge"], effort=Effort(1, 3)).record.figures
    assert [v["rir"] for v in figures["models"]["same"]["variants"]] == pytest.approx([1, 1, 1])
    assert figures["factors"]["originals"] == 2
    gap = figures["attacks"]["ridge"]["same"]["above_original"]
    values = figures["attacks"]["ridge"]["original"]["score"]["values"]
    assert gap["mean"] == pytest.approx((values[1] - values[0]) / 6)


def test_a_threshold_counts_if_it_was_stated_before_the_first_attack(models, tasks, tmp_path):
    given = (models, tasks.primary, tasks.attacker)

    def held(threshold, folder=tmp_path):
        more = {"effort": Effort(1, 5), "run": {"folder": folder}, "threshold": threshold}
        return audit(*given, attacks=["ridge"], **more).record.settings["threshold"]

    assert held(0.7) == held(0.7) == 0.7  # continued
    with pytest.warns(UserWarning, match="was stated after attacks .* and threshold 0.7"):
        assert held(0.8) is None
    assert held(None, tmp_path / "b") is None
    with pytest.warns(UserWarning, match="and no threshold"):
        assert held(0.7, tmp_path / "b") is None
    for wrong in (70, -0.1):
        with pytest.raises(SettingsError, match="expected a share from 0 to 1"):
            audit(*given, attacks=["ridge"], threshold=wrong)


def test_a_final_audit_scores_other_rows_and_is_counted_once(models, tasks, tmp_path, monkeypatch):
    monkeypatch.setenv("IMMUNIS_LEDGER", str(tmp_path / "ledger.jsonl"))
    given = (models, tasks.primary, tasks.attacker)

    def rows(final, folder="a", budget=5):
        more = {"effort": Effort(1, budget), "run": {"folder": tmp_path / folder}}
        return audit(*given, attacks=["ridge"], final=final, **more).record.figures

    development = rows(False)
    assert "final" not in development and not (tmp_path / "ledger.jsonl").exists()
    one, again, elsewhere = rows(True), rows(True), rows(True, "b")
    assert one["scored"]["half"] == "final"
    assert one["scored"]["rows"] + development["scored"]["rows"] == one["scored"]["of"]
    assert [each["final"] for each in (one, again, elsewhere)] == [{"audits": 1}] * 3
    assert rows(True, budget=6)["final"] == {"audits": 2}


def test_a_final_audit_of_too_few_rows_or_without_a_ledger_runs_nothing(
    models, tasks, pair, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IMMUNIS_LEDGER", str(tmp_path / "file" / "ledger.jsonl"))
    monkeypatch.setattr(sys.modules["immunis.audits.audit"], "sweep", lambda *_, **__: 1 / 0)
    with pytest.raises(OutputError, match="set IMMUNIS_LEDGER"):
        audit(models, tasks.primary, tasks.attacker, attacks=["ridge"], final=True)
    with pytest.raises(InputError, match="a final audit needs"):
        audit({"original": _network(0)}, *pair, attacks=["ridge"], final=True)


def test_anticipated_attacks_are_named_and_the_worst_case_is_given_without_them(models, tasks):
    record = run(models, tasks, seeds=1, attacks=["ridge", "float64"]).record
    assert record.settings["anticipated"] == ["ridge"]
    case = record.figures["worst_case"]["erase"]
    assert case["attacks"] == 2 and case["unseen"]["attacks"] == 1
    assert case["unseen"]["attack"] == "float64"


def test_primary_scores_are_compared_with_the_same_training_without_the_defence(models, tasks):
    both = {**models, "plain": models["original"]}
    found = audit(
        both, tasks.primary, tasks.attacker, attacks=["ridge"], effort=Effort(1, 5), plain="plain"
    ).record
    change = found.figures["models"]["erase"]["primary_change"]
    assert change["plain"] == change["original"]
    assert found.settings["plain"] == "plain"
    with pytest.raises(InputError, match="plain='bare' names no model"):
        audit(models, tasks.primary, tasks.attacker, attacks=["ridge"], plain="bare")


def test_the_searched_space_may_be_narrowed(pair):
    primary, harmful = pair
    models = {"original": _network(0)}
    attacks = ["finetune_all"]
    space = {"optimizer": ["adamw"], "rate": [0.1], "decay": [0.1]}
    few = Effort(1, 2, space=space)
    part = audit(models, primary, harmful, attacks=attacks, effort=few).record
    row = part.figures["attacks"]["finetune_all"]["original"]
    assert space.items() >= {n: [v] for n, v in row["settings"][0].items() if n in space}.items()
    assert part.settings["space"] == space
    with pytest.raises(SettingsError, match="space leaves none of them"):
        audit(models, primary, harmful, attacks=attacks, effort={"space": {"optimizer": ["lion"]}})


def test_a_budget_by_kind_leaves_what_it_does_not_name_to_the_preset(pair):
    attacks, effort = ["sgd", "finetune_all"], {"seeds": 1, "budget": {"tuning": 2}}
    record = audit({"original": _network(0)}, *pair, attacks=attacks, effort=effort).record
    ran = record.figures["attacks"].items()
    ends = {attack: row["original"]["curve"][-1]["steps"] for attack, row in ran}
    assert ends["finetune_all"] <= 2 < ends["sgd"]
    kept = {"budget": 2, "probe_budget": 250, "retraining_budget": 550, "tuning_total": 12}
    assert record.settings.items() >= kept.items()
    assert steps_of(record) == "2 steps of fine-tuning, 250 of probes"


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ({"tunning": 2}, "did you mean 'tuning'"),
        ({"probes": 0}, "expected at least 1"),
        ({"probes": 10**7 + 1}, "at most 10,000,000"),
        ({"probes": "2"}, "expected a whole number"),
        ("2", "expected a whole number"),
    ],
)
def test_a_budget_of_another_kind_is_refused(budget, says):
    with pytest.raises(SettingsError, match=says):
        Effort(budget=budget)


def test_identical_seeds_give_identical_records_whatever_the_number_of_workers(models, tasks):
    one, again, two = (run(models, tasks, seeds=2, workers=w) for w in (1, 1, 2))
    assert timeless(one) == timeless(again) == timeless(two)


@pytest.mark.slow
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
    assert count == 8  # two models, three controls, and these from scratch


def copies(tasks, change, of, test=False):
    """The attacker's task with five changed rows of other data among its own."""
    parts = {"train": tasks.attacker.train.tensors(), "test": tasks.attacker.test.tensors()}
    (x, y), rows = parts["test" if test else "train"], change(of.train.tensors()[0][:5])
    parts["test" if test else "train"] = torch.cat([x.double(), rows]), torch.cat([y, y[:5]])
    return Task(parts["train"], parts["test"], "leaky")


@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize("of", ["primary", "harmful"])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.double(),
        lambda x: (x.double() / 3).float().double() * 3,
        lambda x: x.double() * (1 + 1e-12),
        lambda x: x.double() + 1e-9 * (torch.arange(x.shape[1]) == 7),
    ],
    ids=["same", "float32", "scaled", "one feature"],
)
def test_copies_of_what_the_defence_has_seen_are_refused(tasks, change, of, test):
    leaky = copies(tasks, change, getattr(tasks, of), test)
    name = {"primary": "the training data of which digit", "harmful": "the defender's sample"}[of]
    with pytest.raises(InputError, match=rf"[5-9] sample.* of leaky .*\([5-9] in {name}"):
        disjoint_rows(leaky, tasks.primary, tasks.harmful)


def test_images_that_look_alike_are_said_and_many_are_refused():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (300, 3, 8, 8))).float()
    noisy, y = x + torch.from_numpy(rng.normal(size=x.shape)).float(), torch.arange(300) % 2
    seen, defender = Task((x[:100], y[:100])), Task((x[100:150], y[100:150]))

    def attacker(few):
        both = torch.cat([noisy[:few], x[150:250]]), y[: few + 100]
        return Task(both, (x[250:], y[250:]), "attacker")

    with pytest.warns(UserWarning, match=r"5 image\(s\) of attacker look like"):
        found = disjoint_rows(attacker(5), seen, defender)
    assert (found["shared"], found["alike"], found["alike_tolerance"]) == (0, 5, 0.1)
    with pytest.raises(InputError, match=r"20 sample.* or look like it"):
        disjoint_rows(attacker(20), seen, defender)


def test_shared_rows_of_the_attackers_own_data_are_counted(models, tasks):
    x, y = tasks.attacker.train.tensors()
    leaky = Task((x, y), (x[:10], y[:10]), "leaky")
    with pytest.warns(UserWarning, match="10 sample"):
        found = audit(models, tasks.primary, leaky, attacks=["ridge"], effort=Effort(1, 5))
    assert found.record.figures["disjoint"]["train_in_test"] == 10


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ({"k": 5}, "k=5; expected a list of values"),
        ({"basis": "unit"}, "basis='unit'; expected a list of values"),
        ({"k": []}, "expected a list of values"),
        ({"k": [10**6]}, "space leaves none of them"),
        ({"kk": [5]}, "did you mean 'k'"),
    ],
)
def test_a_wrong_space_is_refused_before_anything_runs(pair, monkeypatch, space, says):
    monkeypatch.setattr("immunis.audits.audit.sweep", lambda *_, **__: pytest.fail("it ran"))
    few = {"seeds": 1, "budget": 5, "space": space}
    with pytest.raises(SettingsError, match=says):
        audit({"original": torch.eye(5)}, *pair, attacks=["knn"], effort=few)


def test_an_attack_of_ones_own_with_a_wrong_space_is_refused_before_anything_runs(
    pair, monkeypatch
):
    with pytest.raises(SettingsError, match=r"shrink=0.5; expected a list of values to search"):
        Attack(lambda arena, settings: iter(()), {"shrink": 0.5})
    own = Attack(lambda arena, settings: iter(()), {"shrink": lambda arena: 0.5}, name="own")
    monkeypatch.setitem(ATTACKS, "own", own)
    monkeypatch.setattr("immunis.audits.audit.sweep", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(SettingsError, match=r"attack 'own': shrink=0.5; expected a list"):
        audit({"original": torch.eye(5)}, *pair, attacks=["own"], effort={"seeds": 1})
