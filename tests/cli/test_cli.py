import errno
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import immunis
from helpers import RESULTS
from immunis import Record, Spectrum
from immunis.attacks import ATTACKS, PRESETS
from immunis.cli import console, names
from immunis.models.find_cut import cut
from immunis.recipes import bundled, load_recipe
from immunis.recipes.pipeline import Pipeline
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
NETWORK = (
    RECIPE.replace('"erase"', '"probe"\nweight = 10')
    + "[training]\nsteps = 40\nharmful_batch = 32\n"
)


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


def test_a_dry_run_tells_what_an_audit_maps_from_disk(run, tmp_path, monkeypatch):
    monkeypatch.setattr("immunis.core.disk_arrays.SMALL", 1)  # everything is large
    (tmp_path / "small.toml").write_text(RECIPE)
    done = run("audit", "small.toml", "--attacks", "ridge", "--methods", "none", "--dry-run")
    assert " GiB of temporary files mapped into it" in " ".join(done.stdout.split())
    words = "--attacks", "ridge", "--methods", "none", "--dry-run", "--json"
    told = json.loads(run("audit", "small.toml", *words).stdout)
    # eight float32 numbers a row, of the original and of three untrained controls
    assert told["disk"] == 4 * (60 + 450) * 8 * 4


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


def test_too_little_memory_is_said_without_a_traceback(tmp_path):
    wide = RECIPE.replace("network = [8]", "network = [65536, 65536]")  # 17 GB
    (tmp_path / "small.toml").write_text(wide)
    command = f"ulimit -v {16 << 20}; exec {sys.executable} -m immunis immunize small.toml"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
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
    text = RECIPE.replace('"erase"', '"condition"\nsteps = 100000000')
    (tmp_path / "small.toml").write_text(text)
    done = run("immunize", "small.toml", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parts"]["condition"] > 1000  # 10 μs a step, and it has ended


def test_a_method_with_training_of_its_own_is_resumable(run, tmp_path):
    text = RECIPE.replace(
        '"erase"', '"probe"\nweight = 10\ntraining = {steps = 4, harmful_batch = 32}'
    )
    (tmp_path / "small.toml").write_text(text)
    done = run("immunize", "small.toml", "-o", "out", "--resume")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "training").exists()
    assert not (tmp_path / "out" / "head.safetensors").exists()


def test_nothing_to_resume_is_said(run, tmp_path):
    (tmp_path / "closed.toml").write_text(RECIPE)
    (tmp_path / "trained.toml").write_text(NETWORK)
    done = run("immunize", "closed.toml", "--resume")
    assert done.returncode == 0
    assert "nothing to resume: method 'erase' is solved in closed form" in done.stderr
    first, second = (run("immunize", "trained.toml", "-o", "out", "--resume") for _ in range(2))
    assert f"nothing to resume: {Path('out/training')} holds no checkpoint" in first.stderr
    assert "nothing to resume" not in second.stderr


def test_paragraphs_of_help_are_not_cut_where_the_source_is(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    joined = "Run the same command again to continue an interrupted audit."
    assert joined in run("audit", "--help").stdout
    assert "Precision of pre-training" in run("measure", "--help").stdout


def test_a_dry_run_of_a_network_times_its_training(run, tmp_path):
    (tmp_path / "small.toml").write_text(NETWORK)
    done = run("immunize", "small.toml", "--dry-run", "--json")
    assert json.loads(done.stdout)["parts"]["probe"] > 0, done.stderr


def test_no_colours_where_the_output_is_no_terminal(tmp_path):
    command = [sys.executable, "-m", "immunis", "list", "recipes"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, check=True)
    assert b"\x1b" not in done.stdout


COMPLETED = {
    "immunis audit digit": "digit-parity",
    "immunis audit digits --attacks ridge,ker": "ridge,kernel",
    "immunis audit digits --attacks qu": "quick",
    "immunis au": "audit",
    "immunis audit digits --fi": "--final",
}


def quickly(*words, **variables):
    """Run a command in a fresh process; return what it printed, and whether it imported torch."""
    code = (
        "import sys, atexit; from immunis.cli.main import main\n"
        "slow = {'torch', 'numpy', 'scipy', 'matplotlib', 'jinja2'}\n"
        "atexit.register(lambda: print('imported', *slow & sys.modules.keys()))\n"
        f"sys.argv = {['immunis', *words]!r}; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True
    )
    *printed, last = done.stdout.splitlines()
    return printed, last, done.stderr


@pytest.mark.parametrize("typed", COMPLETED)
def test_the_shell_completes_names_without_waiting_for_torch(typed):
    asked = {"_IMMUNIS_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    printed, last, stderr = quickly(**asked, COMP_CWORD=str(typed.count(" ")))
    assert COMPLETED[typed] in printed, stderr
    assert last == "imported"


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["audit", "--help"], []])
def test_the_first_words_do_not_wait_for_torch(words):
    printed, last, _ = quickly(*words)
    assert printed and last == "imported"


def test_names_to_complete_are_all_there_are():
    assert names.attacks() == sorted(ATTACKS)
    assert tuple(PRESETS) == names.PRESETS
    assert names.recipes() == sorted(bundled())


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
    attacks = json.loads(run("list", "attacks", "--json").stdout)["attacks"]
    assert all(each.keys() == {"name", "summary", "family"} for each in attacks)
    assert {each["family"] for each in attacks} == {"probes", "surgery", "fine-tuning", "adaptive"}
    assert run("-q", "list", "attacks").stdout.split() == list(ATTACKS)


def test_a_recipe_with_a_network_is_measured_by_its_features(run):
    recipe = load_recipe("digit-parity")
    tasks = recipe.tasks()
    model = Pipeline(recipe, tasks).original()
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
    runs = tmp_path / "runs" / "audit"
    runs.mkdir(parents=True)
    (runs / "record.json").write_bytes(audits[0].read_bytes())
    (tmp_path / "about.toml").write_text('model = "mine 1.0"\nlicence = "MIT"\n')
    done = run("card", tmp_path / "runs", "--about", tmp_path / "about.toml")
    assert done.stdout.strip() == f"written: {tmp_path / 'runs' / 'card.html'}"
    assert "mine 1.0" in (tmp_path / "runs" / "card.html").read_text(encoding="utf-8")
    (tmp_path / "about.toml").write_text('licens = "MIT"\n')
    done = run("card", audits[0], "--about", tmp_path / "about.toml", "-o", "no.html")
    assert done.returncode == 2 and "did you mean 'licence'" in done.stderr
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


def test_view_serves_this_machine_until_it_is_interrupted(tmp_path):
    command = [sys.executable, "-u", "-m", "immunis", "view", str(RESULTS), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as served:
        address = served.stdout.readline().decode().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        with urllib.request.urlopen(address, timeout=120) as answer:
            assert "digits 0-4 (primary) against digits 5-9" in answer.read().decode()
        served.send_signal(signal.SIGINT)
        assert "ended." in served.stderr.read().decode()
        assert served.wait(60) == 0


def test_view_of_no_folder_is_refused(run):
    done = run("view", "nothing")
    assert done.returncode == 2 and "is not a folder; expected one that holds runs" in done.stderr


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
        (["audit", "digits", "--device", "gpu"], 2, "did you mean 'cuda'"),
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
    assert lines[0].startswith("highest score of 2 attacks, 5 steps")
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
    assert "highest score of 1 attacks" in one.stdout
    *_, most, first, second, where = one.stdout.splitlines()
    assert most.startswith("Highest score of any attack: original ") and ", untrained " in most
    assert first.startswith("erase: ") and second.startswith("erase 2")
    assert where.startswith("written: ")


def test_an_audit_of_the_original_alone(run, tmp_path):
    (tmp_path / "small.toml").write_text(RECIPE)
    done = run("audit", "small.toml", "--methods", "none", "--json")
    record = json.loads(done.stdout)
    assert set(record["figures"]["models"]) == {"original"}
    assert set(record["figures"]["attacks"]["ridge"]) == {"original", "untrained"}
    assert record["figures"]["controls"]["from scratch"]["status"] == "done"
    assert run("audit", "small.toml", "--methods", "non").returncode == 2


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


@pytest.mark.slow
def test_the_demo_defends_a_network_and_attacks_every_layer(run, tmp_path):
    done = run("demo", "-o", "out")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert {"SHA256SUMS", "card.html", "record.json"} <= {path.name for path in out.iterdir()}
    figures = Record.load(out / "record.json").figures
    assert {"original", "plain", "probe", "condition"} <= figures["models"].keys()
    scores = {
        attack: {name: row[name]["score"]["mean"] for name in ("original", "probe", "untrained")}
        for attack, row in figures["attacks"].items()
    }
    assert scores["ridge"]["probe"] < scores["ridge"]["untrained"] < scores["ridge"]["original"]
    assert "finetune_all" in scores and "earlier_layer" in scores
    assert figures["models"]["probe"]["primary"] > 0.9


def test_the_linear_demo_writes_everything_and_its_table_is_the_record(run, tmp_path):
    done = run("demo", "--linear", "-o", "out")
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
    assert not rows["frontier"]["definition"]["harmful"]["holds"]
    assert all(part["holds"] for part in rows["frontier, κ_P kept"]["definition"].values())
    assert "Definition 3.1" in done.stdout and "no (× 0.0139)" in done.stdout
    ratios = {name: row["rir"]["value"] for name, row in rows.items()}
    assert ratios.pop("erase ε=0") is None  # it changes ranks
    assert max(ratios.values()) <= record.figures["ceiling"] * (1 + 1e-6)
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


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["audit", "--help"], []])
def test_what_needs_no_torch_does_not_import_it(words):
    code = (
        f"import sys; sys.argv = {['immunis', *words]!r}\n"
        "from immunis.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_name_that_is_not_there_is_said_of_the_package():
    with pytest.raises(AttributeError, match="^module 'immunis' has no attribute 'nope'$"):
        immunis.nope  # noqa: B018


@pytest.mark.parametrize("module", ["typer", "rich.console", "torch", "immunis.recipes.demo"])
def test_an_interrupt_while_modules_load_is_no_traceback(tmp_path, module):
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            try: os.kill(os.getpid(), signal.SIGINT)\n"
        "            except BaseException: os.abort()\n"  # as C++ code of torch does
        "sys.meta_path.insert(0, Interrupt())\n"
        "from immunis.cli.main import main\n"
        "sys.argv = ['immunis', 'demo', '--linear']\n"
        "main()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted.\n")
    assert not list(tmp_path.iterdir())


SEVERAL = """
import sys
from immunis.cli.main import main

for given in sys.argv[1:]:
    sys.stdout.reconfigure(errors="strict")  # as in a new process
    sys.argv, code = ["immunis", *given.split()], 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    print("\\0", file=sys.stderr, flush=True)
    print(f"\\0{code}", flush=True)
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_greek_letters_gets_escapes(tmp_path, encoding):
    env = os.environ | {"PYTHONIOENCODING": encoding}
    (tmp_path / "é.toml").write_text("# größe\n[data]\nsource = 'digit-parity'\n", encoding="utf-8")
    commands = ["measure é.toml", "measure é.toml --json", "list", "measure κ"]
    done = subprocess.run(  # in one process, since each one imports torch anew
        [sys.executable, "-c", SEVERAL, *commands],
        capture_output=True, cwd=tmp_path, env=env, check=False,
    )  # fmt: skip
    texts = [part.decode(encoding) for part in (done.stdout, done.stderr)]
    assert done.returncode == 0 and "Traceback" not in "".join(texts), texts
    shown, codes = zip(*re.findall("(.*?)\0([0-9]+)\n", texts[0], re.S), strict=True)
    assert codes == ("0", "0", "0", "2"), texts
    said = [one + two for one, two in zip(shown, texts[1].split("\0\n")[:-1], strict=True)]
    assert json.loads(shown[1])["kind"] == "measure"
    assert "\\u03ba" in said[0] and ("é" in said[0] or "\\xe9" in said[0])


def test_one_process_of_a_run_warns_for_all(capsys, monkeypatch):
    console.show_warning("few rows", UserWarning)
    assert "warning: few rows" in capsys.readouterr().err
    monkeypatch.setenv("LOCAL_RANK", "1")
    console.show_warning("few rows", UserWarning)
    assert not capsys.readouterr().err


RUINED = """
[data]
source = "npz"
primary = "task.npz"
harmful = "task.npz"
[method]
name = "erase"
strength = 0.0
"""


def test_a_ruined_model_is_refused_and_kept_under_another_name(run, tmp_path):
    (tmp_path / "small.toml").write_text(RUINED)
    x, y = torch.randn(200, 3).numpy(), torch.arange(200).numpy() % 2
    x[:, 0] += 3 * y
    np.savez(tmp_path / "task.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    done = run("immunize", "small.toml", "-o", "out")
    assert done.returncode == 1, done.stderr
    told = done.stderr.splitlines()[-1]
    assert told.startswith("failed: The model lost its primary task") and "--allow-broken" in told
    assert (tmp_path / "out" / "broken" / "model.safetensors").exists()
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert "Do not release it" in (tmp_path / "out" / "broken" / "card.html").read_text()
    done = run("immunize", "small.toml", "-o", "two", "--allow-broken")
    assert done.returncode == 0 and (tmp_path / "two" / "model.safetensors").exists()


def test_a_command_fails_where_a_figure_says_so(run, tmp_path):
    (tmp_path / "small.toml").write_text(RECIPE)
    done = run("audit", "small.toml", "--attacks", "ridge", "--fail-if", "highest>1", "-o", "out")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("failed: --fail-if highest>1: highest of erase")
    assert (tmp_path / "out" / "record.json").exists()  # the work is done and kept
    done = run("audit", "small.toml", "--attacks", "ridge", "--fail-if", "failed>0", "-o", "out")
    assert done.returncode == 0, done.stderr
    for words in (["audit", "small.toml"], ["immunize", "small.toml"]):
        done = run(*words, "--fail-if", "kepd>1", "-o", "three")
        assert done.returncode == 2 and "Known: " in done.stderr
        assert not (tmp_path / "three").exists()
    assert run("audit", "small.toml", "--fail-if", "kept[nobody]>1").returncode == 2
    gates = ["--fail-if", "primary<-50", "--fail-if", "rho<-1"]
    assert run("immunize", "small.toml", *gates, "-o", "four").returncode == 0
    assert run("immunize", "small.toml", *gates, "--fail-if", "rho<2", "-o", "four").returncode == 1
