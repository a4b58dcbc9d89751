import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers import RESULTS
from immunis import Record, Spectrum
from immunis.cli import console
from immunis.models.find_head import cut
from immunis.recipes import load_recipe
from immunis.recipes.pipeline import original
from immunis.theory.gram import gram_of

RECIPE = """
[data]
source = "digit-parity"
[model]
network = [8]
[method]
name = "erase"
[audit]
budget = 5
seeds = 1
attacks = ["ridge", "finetune_all"]
"""
NETWORK = RECIPE.replace('"erase"', '"probe"') + "[training]\nsteps = 40\nharmful_batch = 32\n"


def test_alone_it_says_what_to_do_first(run):
    done = run()
    assert done.returncode == 0
    assert "immunis demo" in done.stdout
    assert "start here" in done.stdout


@pytest.mark.parametrize("place", [0, 1, 2])
def test_quiet_prints_where_the_result_is_and_nothing_else(run, place):
    words = ["measure", "digits"]
    done = run(*words[:place], "--quiet", *words[place:])
    assert done.stdout == f"written: {Path('immunis-runs/digits-measure')}/record.json\n"
    assert done.stderr == ""  # no bar, no warning


def test_verbose_prints_every_stage_and_the_traceback_of_an_error(run, tmp_path):
    (tmp_path / "small.toml").write_text(RECIPE)
    done = run("audit", "small.toml", "--attacks", "ridge", "-v")
    assert "100% " in done.stderr
    assert "Traceback" in run("-v", "measure", "nothing").stderr
    assert "Traceback" not in run("measure", "nothing").stderr
    assert run("-v", "-q", "measure", "digits").returncode == 2


@pytest.mark.parametrize("command", ["immunize", "audit"])
def test_a_dry_run_estimates_time_and_memory_and_writes_nothing(run, tmp_path, command):
    (tmp_path / "small.toml").write_text(RECIPE)
    before = sorted(tmp_path.rglob("*"))
    done = run(command, "small.toml", "--dry-run")
    assert done.returncode == 0
    assert re.fullmatch(
        r"about [\d.]+ (seconds|minutes); [\d.]+ GiB of memory for each process\.",
        done.stdout.splitlines()[-1],
    )
    assert sorted(tmp_path.rglob("*")) == before
    found = json.loads(run(command, "small.toml", "--dry-run", "--json").stdout)
    assert found["seconds"] == pytest.approx(sum(found["parts"].values()))
    assert found["memory"] > 1e6


def test_an_audit_finds_its_device_before_it_trains_anything(run, tmp_path):
    (tmp_path / "small.toml").write_text(RECIPE.replace("finetune_all", "knn"))
    assert run("audit", "small.toml", "--device", "auto", "--dry-run").returncode == 0
    assert run("audit", "small.toml", "--device", "auto", "-o", "auto").returncode == 0
    if not torch.cuda.is_available():
        done = run("audit", "small.toml", "--device", "cuda", "-o", "cuda")
        assert done.returncode == 2 and "'cuda' cannot be used here" in done.stderr
        assert not (tmp_path / "cuda").exists()


def test_a_result_of_another_kind_is_not_replaced(run, tmp_path):
    (tmp_path / "small.toml").write_text(RECIPE)
    assert run("measure", "small.toml", "-o", "out").returncode == 0
    before = (tmp_path / "out" / "record.json").read_bytes()
    for _ in range(2):
        done = run("immunize", "small.toml", "-o", "out")
        assert done.returncode == 1 and "holds the record of 'measure'" in done.stderr
    assert (tmp_path / "out" / "record.json").read_bytes() == before
    assert run("measure", "small.toml", "-o", "out").returncode == 0


def test_what_a_solved_method_does_not_use_is_refused(run, tmp_path):
    (tmp_path / "small.toml").write_text(RECIPE)
    done = run("immunize", "small.toml", "--precision", "bf16-mixed")
    assert done.returncode == 2 and "is solved" in done.stderr
    assert run("immunize", "small.toml", "--device", "auto").returncode == 0


def test_too_little_memory_is_said_without_a_traceback(run, tmp_path):
    (tmp_path / "small.toml").write_text(RECIPE.replace("network = [8]", "network = [99999999999]"))
    done = run("immunize", "small.toml")
    assert done.returncode == 1 and "not enough memory" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_attacks_are_not_all_of_them(run, tmp_path):
    (tmp_path / "small.toml").write_text(RECIPE)
    assert run("audit", "small.toml", "--attacks", "").returncode == 2


def test_an_audit_keeps_the_seed_of_its_recipe(run, tmp_path):
    (tmp_path / "small.toml").write_text("seed = 5\n" + RECIPE)
    done = run("audit", "small.toml", "--attacks", "ridge", "--json")
    assert json.loads(done.stdout)["seed"] == 5


def test_many_steps_of_a_linear_method_are_estimated_from_a_few(run, tmp_path):
    text = RECIPE.replace('"erase"', '"condition"\nsteps = 1000000000')
    (tmp_path / "small.toml").write_text(text)
    done = run("immunize", "small.toml", "--dry-run")
    assert done.returncode == 0 and "hours" in done.stdout, done.stderr


def test_a_method_with_training_of_its_own_is_resumable(run, tmp_path):
    text = RECIPE.replace('"erase"', '"probe"\ntraining = {steps = 4, harmful_batch = 32}')
    (tmp_path / "small.toml").write_text(text)
    done = run("immunize", "small.toml", "-o", "out", "--resume")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "training").exists()
    assert not (tmp_path / "out" / "head.safetensors").exists()


def test_a_dry_run_of_a_network_times_its_training(run, tmp_path):
    (tmp_path / "small.toml").write_text(NETWORK)
    done = run("immunize", "small.toml", "--dry-run", "--json")
    assert json.loads(done.stdout)["parts"]["probe"] > 0, done.stderr


def test_no_colours_where_the_output_is_no_terminal(tmp_path):
    command = [sys.executable, "-m", "immunis", "list", "recipes"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, check=True)
    assert b"\x1b" not in done.stdout


def test_the_shell_completes_recipes_and_attacks(tmp_path):
    for typed, expected in (
        ("immunis audit digit", "digit-parity"),
        ("immunis audit digits --attacks ridge,ker", "ridge,kernel"),
    ):
        asked = {
            "_IMMUNIS_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(typed.count(" ")),
        }
        command = [Path(sys.executable).parent / "immunis"]
        done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True)
        assert expected in done.stdout.split(), done.stderr


@pytest.mark.parametrize("command", [[], ["measure"], ["immunize"], ["audit"], ["demo"], ["list"]])
def test_help_says_what_to_do(run, command, tmp_path):
    done = run(*command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_version_and_list(run, tmp_path):
    assert run("--version").stdout.startswith("immunis 0.")
    listed = run("list").stdout
    for word in ("frontier", "erase", "digits", "npz", "lambda_primary"):
        assert word in listed
    assert "lambda_primary" not in run("list", "recipes").stdout
    assert json.loads(run("list", "--json").stdout)["methods"][0]["name"] == "r_ill"


def test_a_recipe_with_a_network_is_measured_by_its_features(run):
    recipe = load_recipe("digit-parity")
    tasks = recipe.tasks()
    model = original(recipe, tasks)
    whole = cut(model, tasks.primary.train.first(2), tasks.primary.outputs)
    expected = Spectrum.of(gram_of(whole.features(tasks.primary.train.tensors()[0]).detach()))
    found = json.loads(run("measure", "digit-parity", "--json").stdout)["figures"]["primary"]
    assert found["dimension"] == whole.width
    assert found["condition_number"] == pytest.approx(expected.condition_number, rel=1e-3)
    refused = run("measure", "digits", "--precision", "bf16-mixed")
    assert refused.returncode == 2 and "name a network in [model]" in refused.stderr
    refused = run("measure", "digit-parity", "--precision", "bf16-mixed")
    assert refused.returncode == 2 and "no network is trained first" in refused.stderr


def test_measure_prints_a_table_or_json_and_writes_a_record(run, tmp_path):
    done = run("measure", "digits")
    assert done.returncode == 0, done.stderr
    assert "RIR*" in done.stdout
    assert done.stdout.strip().splitlines()[-1].startswith("written: ")
    assert "rank 61 of 64" in done.stderr
    path = tmp_path / "immunis-runs" / "digits-measure" / "record.json"
    assert Record.load(path).kind == "measure"
    printed = json.loads(run("measure", "digits", "--json").stdout)
    assert printed["figures"] == json.loads(path.read_text())["figures"]


def test_cards_and_figures_are_made_from_records(run, tmp_path):
    results = RESULTS
    audits = [results / f"audit-{n}.json" for n in ("digit-parity", "tiny-imagenet-cars-resnet18")]
    done = run("card", *audits, "-o", tmp_path / "both.html")
    assert done.stdout.strip() == f"written: {tmp_path / 'both.html'}"
    assert "2 records side by side" in (tmp_path / "both.html").read_text(encoding="utf-8")
    assert run("card", audits[0], "-o", tmp_path / "README.md").returncode == 0
    assert (tmp_path / "README.md").read_text(encoding="utf-8").startswith("---\n# license")
    done = run("card", audits[0], "-o", tmp_path / "card.pdf")
    assert done.returncode == 2 and ".html" in done.stderr
    done = run("figures", results / "reproduce-house-prices.json", "-o", "drawn")
    assert done.stdout.strip() == "written: drawn"
    assert (tmp_path / "drawn" / "reproduce-house-prices-overview.pdf").exists()
    for bad in (
        [tmp_path / "none.json"],
        [results / "bench-core.json"],
        [results / "demo.json", audits[0]],
    ):
        done = run("card", *bad, "-o", tmp_path / "no.html")
        assert done.returncode == 2 and done.stderr.startswith("error: ")
        assert not (tmp_path / "no.html").exists()


def test_immunize_writes_weights_record_and_card(run, tmp_path):
    done = run("immunize", "digits", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert load_file(tmp_path / "out" / "model.safetensors")["weight"].shape == (64, 64)
    assert load_file(tmp_path / "out" / "head.safetensors")["weight"].shape == (5, 64)
    record = Record.load(tmp_path / "out" / "record.json")
    assert record.figures["rho"]["after"] < 0.01 < record.figures["rho"]["before"]
    assert record.settings["recipe"]["data"]["source"] == "digits"
    assert "<html" in (tmp_path / "out" / "card.html").read_text()
    again = json.loads(run("immunize", "digits", "--json", "-o", "two").stdout)
    assert again["figures"] == json.loads(record.to_json())["figures"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["measure", "digitss"], 2, "did you mean 'digits'"),
        (["measure", "none.toml"], 2, "cannot read recipe"),
        (["immunize", "broken.toml"], 2, "not valid TOML"),
        (["immunize", "nomethod.toml"], 2, "has no [method]"),
        (["immunize", "badkey.toml"], 2, "did you mean 'strength'"),
        (["measure", "digits", "-o", "file"], 1, "cannot write to output folder"),
        (["measure", "house-prices", "--data", "nowhere"], 2, "data not found"),
        (["list", "method"], 2, "did you mean 'methods'"),
        (["demo", "--seed", "-1"], 2, "--seed"),
        (["immunize", "late.toml"], 2, "label 5 is not among"),
        (["audit", "digitparity"], 2, "did you mean 'digit-parity'"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_mistakes_end_in_one_clear_error_and_leave_nothing_behind(
    run, tmp_path, arguments, code, says
):
    (tmp_path / "broken.toml").write_text("name =")
    (tmp_path / "nomethod.toml").write_text("[data]\nsource = 'digits'\n")
    (tmp_path / "badkey.toml").write_text(
        "[data]\nsource = 'digits'\n[method]\nname = 'erase'\nstrenght = 0.1\n"
    )
    (tmp_path / "file").write_text("x")
    np.savez(tmp_path / "p.npz", x_train=np.eye(4), y_train=[0, 1, 0, 1])
    np.savez(
        tmp_path / "h.npz", x_train=np.eye(4) * [1, 2, 3, 4] + np.ones(4), y_train=[0, 0, 1, 1]
    )
    np.savez(
        tmp_path / "unseen.npz",
        x_train=np.eye(4),
        y_train=[0, 1, 0, 1],
        x_test=np.eye(4),
        y_test=[0, 1, 0, 5],
    )
    (tmp_path / "late.toml").write_text(
        "[data]\nsource = 'npz'\nprimary = 'unseen.npz'\nharmful = 'h.npz'\n"
        "[method]\nname = 'frontier'\n"
    )
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    done = run(*arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


def test_a_read_only_folder_is_said(run, tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir(mode=0o500)
    if os.geteuid() == 0:  # root may write anywhere: take that away

        def closed(**_):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr("immunis.core.files.tempfile.TemporaryFile", closed)
    done = run("measure", "digits", "-o", "closed/x")
    assert done.returncode == 1
    assert "cannot write" in done.stderr


def test_audit_prints_the_worst_case_first_and_resumes(run, tmp_path):
    (tmp_path / "small.toml").write_text(
        "[data]\nsource = 'digit-parity'\n[model]\nnetwork = [8]\n"
        "[audit]\nattacks = ['ridge', 'knn']\nseeds = 1\nbudget = 5\n"
        "[[audit.methods]]\nname = 'erase'\n[[audit.methods]]\nname = 'erase'\nstrength = 0.0\n"
    )
    done = run("audit", "small.toml", "-o", "out", "--workers", "2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("worst of 2 attacks, 5 steps")
    assert "residual" not in done.stderr
    record = Record.load(tmp_path / "out" / "record.json")
    assert list(record.figures["models"]) == ["original", "erase", "erase 2"]
    kept = sorted((tmp_path / "out" / "attacks").iterdir())
    again = run("audit", "small.toml", "-o", "out", "--json")
    assert (
        json.loads(again.stdout)["figures"]["attacks"]
        == json.loads(record.to_json())["figures"]["attacks"]
    )
    assert sorted((tmp_path / "out" / "attacks").iterdir()) == kept
    one = run("audit", "small.toml", "-o", "out", "--attacks", "ridge")
    assert "worst of 1 attacks" in one.stdout


def test_an_interrupted_audit_says_how_to_go_on(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("immunis.audits.audit.sweep", interrupted)
    done = run("audit", "digit-parity", "--attacks", "ridge")
    assert done.returncode == 130
    assert "continue with: immunis audit digit-parity --attacks ridge" in done.stderr


def test_an_interrupted_run_says_so_and_writes_nothing(run, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("immunis.recipes.Recipe.tasks", interrupted)
    done = run("measure", "digits")
    assert done.returncode == 130
    assert "interrupted" in done.stderr
    assert not list(tmp_path.iterdir())


def test_demo_writes_everything_and_its_table_is_the_record(run, tmp_path):
    done = run("demo", "-o", "out")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert sorted(p.name for p in out.iterdir()) == [
        "SHA256SUMS",
        "card.html",
        "norm_ratios.png",
        "overview.png",
        "record.json",
        "spectra.png",
    ]
    record = Record.load(out / "record.json")
    rows = record.figures["methods"]
    for name in rows:
        assert name in done.stdout
    for column in ("κ_P", "κ_H", "RIR", "RIR*", "@10", "@100", "@1000", "ridge"):
        assert column in done.stdout
    assert rows["frontier"]["rir"]["value"] == pytest.approx(record.figures["ceiling"], rel=1e-6)
    best = max(row["rir"]["value"] for row in rows.values())
    assert best <= record.figures["ceiling"] * (1 + 1e-6)
    accuracy = {k: v["harmful_accuracy"]["gradient_descent"]["1000"] for k, v in rows.items()}
    assert accuracy["frontier"] > 0.9 * accuracy["no defence"]  # a high RIR stops nobody
    assert accuracy["erase ε=0.001"] < 0.6 * accuracy["no defence"]
    assert all(row["primary_accuracy"] > 0.95 for row in rows.values())


def test_the_installed_command_works(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "immunis", "list", "nothing"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown list 'nothing'")


def test_one_process_of_a_run_warns_for_all(capsys, monkeypatch):
    console.show_warning("few rows", UserWarning)
    assert "warning: few rows" in capsys.readouterr().err
    monkeypatch.setenv("LOCAL_RANK", "1")
    console.show_warning("few rows", UserWarning)
    assert not capsys.readouterr().err
