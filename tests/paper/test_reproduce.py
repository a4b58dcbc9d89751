"""Planning, running, interrupting and writing an experiment; the command."""

import dataclasses
import json

import pytest

from immunis import SettingsError
from immunis.core import jobs
from immunis.core.jobs import Job, Run
from immunis.data.sources.house_price_table import SHA256
from immunis.paper import figures, house_prices, reproduce, settings_of
from immunis.paper.rows import IDENTITY
from immunis.recipes.estimate import estimate_jobs


@pytest.fixture
def few_rows(monkeypatch):
    """The identity and the released loop alone."""
    names = [IDENTITY, "r_ill", "opt_kappa", "opt_log_kappa", "algorithm_1"]
    monkeypatch.setattr(house_prices, "NAMES", names)


def counted(monkeypatch, stop_after=None):
    """Count the jobs that run; optionally interrupt after a few."""
    ran, call = [], house_prices.run_seed

    def watched(*arguments):
        if len(ran) == stop_after:
            raise KeyboardInterrupt
        ran.append(arguments[:2])
        return call(*arguments)

    monkeypatch.setattr(house_prices, "run_seed", watched)
    return ran


@pytest.mark.filterwarnings("ignore:.*sha256")
def test_an_interrupted_sweep_keeps_what_is_done(house_folder, tmp_path, monkeypatch, few_rows):
    small = house_prices.Settings(seeds=1, epochs=(1,), budget=2, curve=2)
    whole = reproduce("house-prices", house_folder, small)
    with monkeypatch.context() as patch:
        counted(patch, stop_after=3)
        with pytest.raises(KeyboardInterrupt):
            reproduce("house-prices", house_folder, small, run=Run(folder=tmp_path))
    assert len(list(tmp_path.glob("*.json"))) == 3
    shares = []
    run = Run(folder=tmp_path, progress=lambda _, share: shares.append(share))
    with monkeypatch.context() as patch:
        ran = counted(patch)
        record = reproduce("house-prices", house_folder, small, run=run)
    assert len(ran) == len(house_prices.NAMES) - 3
    assert shares == sorted(shares) and shares[-1] == 1
    found, wanted = (each.to_dict()["figures"] for each in (record, whole))
    assert found.pop("made_by")[0]["jobs"] == wanted.pop("made_by")[0]["jobs"]  # not the seconds
    assert found == wanted
    ran = counted(monkeypatch)
    reproduce("house-prices", house_folder, dataclasses.replace(small, seeds=2), run=run)
    assert [seed for _, seed in ran] == [1] * len(house_prices.NAMES)  # the second seed alone


def test_settings_are_those_asked_for():
    assert settings_of("house-prices").seeds == 5 and settings_of("mnist", seeds=7).seeds == 7
    quick = settings_of("mnist", quick=True)
    assert len(quick.pairs) == 2
    assert settings_of("mnist", True, pairs=[(1, 2)]) == dataclasses.replace(quick, pairs=((1, 2),))
    with pytest.raises(SettingsError, match="for mnist"):
        settings_of("house-prices", pairs=[(3, 7)])
    with pytest.raises(SettingsError, match="did you mean 'mnist'"):
        reproduce("mnits")


@pytest.mark.filterwarnings("ignore:.*not the original MNIST files")
def test_a_dry_run_times_one_run_of_each_kind_and_writes_nothing(mnist_folder, tmp_path, run):
    ran = []
    waits = {key: Job(lambda key: ran.append(key), (key,), f"wait: {key}") for key in "xyz"}
    assert set(estimate_jobs(waits, workers=2).parts) == {"wait"}
    assert ran == ["x"]
    refused = run("reproduce", "mnist", "--fetch", "--data", mnist_folder, "--dry-run")
    assert refused.returncode == 2 and "fetch is for house-prices" in refused.stderr
    done = run("reproduce", "mnist", "--quick", "--data", mnist_folder, "--dry-run")
    assert done.stdout.splitlines()[-1].startswith("about "), done.stderr
    assert not list(tmp_path.iterdir())


def test_the_command_writes_everything_and_resumes(
    run, house_folder, tmp_path, monkeypatch, few_rows
):
    small = house_prices.Settings(seeds=1, epochs=(1,), budget=2, curve=2)
    monkeypatch.setattr(house_prices, "QUICK", small)
    drawn = {"norm-ratio": figures.norm_ratio}
    monkeypatch.setitem(figures.FIGURES, "house-prices", drawn)
    command = ("reproduce", "house-prices", "--quick", "--data", house_folder)
    done = run(*command, "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "not tested" in done.stdout
    out = tmp_path / "out"
    assert done.stdout.splitlines()[-1].startswith("written: out/record.json")
    names = {path.name for path in out.iterdir()}
    assert {"record.json", "tables.md", "tables.tex", "figures.csv", "norm-ratio.pdf"} <= names
    kept = {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    again = run(*command, "-o", "out", "--json")
    assert json.loads(again.stdout)["figures"]["rows"]
    assert kept == {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["house-price"], "did you mean 'house-prices'"),
        (["mnist", "--data", "nowhere"], "sha256 ba891046"),
        (["mnist", "--seeds", "0"], "--seeds"),
        (["mnist", "--pairs", "4-4"], "digits [4] are in both tasks"),
        (["house-prices", "--pairs", "3-7"], "for mnist"),
        (["house-prices", "--data", "nowhere"], SHA256),
    ],
)
def test_mistakes_on_the_command_line_leave_nothing_behind(run, tmp_path, arguments, says):
    done = run("reproduce", *arguments)
    assert done.returncode == 2
    assert says in done.stderr.replace("\n", "")
    assert not list(tmp_path.iterdir())


def test_an_interrupted_command_says_how_to_go_on(run, house_folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "_run", interrupted)
    done = run("reproduce", "house-prices", "--data", house_folder)
    assert done.returncode == 130
    assert f"continue with: immunis reproduce house-prices --data {house_folder}" in done.stderr
