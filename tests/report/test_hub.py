"""Releases on the Hugging Face hub: what goes there, and that its README loads it."""

import contextlib
import hashlib
import json
import os
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from torch import nn

from helpers import RESULTS
from helpers.readme import loaded
from immunis import InputError, OutputError, Record, SettingsError, immunize
from immunis.core import releases
from immunis.core.locks import publish
from immunis.report.card import write_card
from immunis.report.export import export
from immunis.report.hub import planned, push
from immunis.report.loading_code import section


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.body, self.head = nn.Linear(5, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.fixture
def network():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4), nn.Linear(4, 3)).eval()


@pytest.fixture
def release(pair, network, tmp_path):
    """A released network, its folder, and what else a run leaves there."""
    result = immunize(network, *pair, "erase", strength=0.1)
    folder = tmp_path / "released"
    export(result.model, result.record, folder)
    (folder / "training").mkdir()
    (folder / "training" / "checkpoint.pt").write_bytes(b"private")
    (folder / ".env").write_text("secret")
    return SimpleNamespace(model=result.model, record=result.record, folder=folder)


class Hub:
    """Stands for ``HfApi``; keeps what it was asked."""

    fault: Exception | None = None
    calls: list = []  # noqa: RUF012

    def create_repo(self, repo, **how):
        self.calls.append(("create_repo", repo, how))
        return f"https://huggingface.co/{repo}"

    def upload_folder(self, **how):
        if self.fault:
            raise self.fault
        self.calls.append(("upload_folder", how))


@pytest.fixture
def hub(monkeypatch):
    library = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(Hub, "calls", [])
    monkeypatch.setattr(Hub, "fault", None)
    monkeypatch.setattr(library, "HfApi", Hub)
    return Hub


FILES = {"README.md", "config.json", "model.safetensors", "record.json", "SHA256SUMS"}


def test_a_dry_run_prints_the_files_and_the_readme_and_writes_nothing(release, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # not even imported
    before = {p: p.read_bytes() for p in release.folder.rglob("*") if p.is_file()}
    done = run("push", release.folder, "ada/safe-net", "--dry-run")
    assert done.returncode == 0
    listed = {
        line.split()[0] for line in done.stdout.split("---\n")[0].splitlines() if line.strip()
    }
    assert listed >= FILES and not listed & {"training/checkpoint.pt", ".env"}
    assert planned(release.folder, "ada/safe-net").readme in done.stdout
    assert "nothing was uploaded" in done.stdout
    assert "sets no license" in done.stderr and "holds no audit" in done.stderr
    assert before == {p: p.read_bytes() for p in release.folder.rglob("*") if p.is_file()}


def test_exactly_the_released_files_are_uploaded(release, hub, run, tmp_path):
    from huggingface_hub.utils import filter_repo_objects

    done = run("push", release.folder, "ada/safe-net", "--private")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "uploaded: https://huggingface.co/ada/safe-net\n"
    (_, repo, made), (_, asked) = hub.calls
    assert repo == "ada/safe-net" and made == {"private": True, "exist_ok": True}
    assert asked["repo_id"] == repo and asked["folder_path"] == release.folder
    there = [str(p.relative_to(release.folder)) for p in release.folder.rglob("*") if p.is_file()]
    sent = set(filter_repo_objects(there, allow_patterns=asked["allow_patterns"]))
    assert sent == FILES
    again = planned(release.folder, "ada/safe-net").sizes  # the sums were kept true
    assert again == {name: (release.folder / name).stat().st_size for name in FILES}


def test_the_readmes_code_loads_the_folder_here_and_from_the_hub(release, hub, monkeypatch):
    x = torch.randn(4, 5)
    readme = (release.folder / "README.md").read_text(encoding="utf-8")
    here = loaded(readme, release.folder, monkeypatch)
    assert torch.equal(here(x), release.model(x)) and not here.training
    plan = planned(release.folder, "ada/safe-net")
    asked = []

    def download(repository):
        asked.append(repository)
        return str(release.folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    there = loaded(plan.readme, release.folder.parent, monkeypatch)
    assert torch.equal(there(x), release.model(x)) and asked == ["ada/safe-net"]
    publish(release.folder / "README.md", plan.readme)
    moved = planned(release.folder, "bob/other").readme  # a second repository
    assert moved == plan.readme.replace("ada/safe-net", "bob/other")


def test_a_model_in_float64_stays_so(pair, tmp_path, monkeypatch):
    result = immunize(torch.eye(5, dtype=torch.float64), *pair, "erase", strength=0.1)
    export(result.model, result.record, tmp_path)
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert torch.equal(loaded(readme, tmp_path, monkeypatch).weight, result.model.weight)


def test_ones_own_class_is_loaded_with_its_arguments_or_said_to_be_lost(release, monkeypatch):
    model, x = Net(7).eval(), torch.randn(4, 5)
    folder = release.folder.parent / "own"
    export(model, release.record, folder, {"width": 7})
    readme = (folder / "README.md").read_text(encoding="utf-8")
    module = json.loads((folder / "config.json").read_text())["class"].split(":")[0]
    assert f"from {module} import Net" in readme
    monkeypatch.setitem(sys.modules, module, sys.modules[__name__])
    assert torch.equal(loaded(readme, folder, monkeypatch)(x), model(x))
    export(model, release.record, folder)  # without its arguments
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "cannot build this model again" in readme and "it differs in body" in readme
    assert torch.equal(loaded(readme, folder, monkeypatch, model=Net(7))(x), model(x))


def test_a_class_of_a_notebook_is_to_be_defined_first():
    config = {"library": "torch", "architectures": ["Net"], "class": "__main__:Net"}
    told = section(config | {"model_args": {}})
    assert "you need the class `Net`" in told and "import Net" not in told
    local = section(config | {"class": "mine:make.<locals>.Net", "model_args": {}})
    assert "import" not in local.split("load_file")[0].replace("import json", "").replace(
        "from safetensors.torch import ", ""
    )
    evil = section({"library": "torch", "class": "os:x\nimport os", "not_rebuilt": "a`b\n```\n<i>"})
    assert evil.count("```") == 2 and "<i>" not in evil and "\nimport os" not in evil


def test_the_metadata_of_weights_and_readme_tell_where_they_come_from(release):
    with safe_open(release.folder / "model.safetensors", "pt") as file:
        found = file.metadata()
    assert found["format"] == "pt" and found["method"] == "erase"
    assert found["record"] == Record.load(release.folder / "record.json").digest()
    library = pytest.importorskip("huggingface_hub")
    card = library.ModelCard(planned(release.folder, "ada/safe-net").readme)
    (score,) = card.data.eval_results
    assert score.metric_type == "accuracy" and score.dataset_name == "primary"


def test_an_audit_and_a_license_in_the_readme_are_kept(release):
    audit = Record.load(RESULTS / "audit-digit-parity.json")
    page = release.folder / "README.md"
    write_card(page, release.record, audit)
    publish(page, page.read_text(encoding="utf-8").replace("---\n", "---\nlicense: mit\n", 1))
    plan = planned(release.folder, "ada/safe-net")
    assert plan.notes == [] and "license: mit" in plan.readme
    assert 'snapshot_download("ada/safe-net")' in plan.readme  # the section came back
    page.write_text(plan.readme + "by hand\n", encoding="utf-8")  # an edited README is the user's
    assert "by hand" in planned(release.folder, "ada/safe-net").readme


@pytest.mark.parametrize("name", ["net", "a/b/c", "a b/c", "/c", "a/", "a/..", "a/b--c", "-a/b"])
def test_a_repository_has_an_owner_and_a_name(release, name):
    with pytest.raises(SettingsError, match="expected USER/NAME"):
        planned(release.folder, name)


def test_what_is_no_whole_release_is_refused(release, tmp_path):
    with pytest.raises(InputError, match="is no released model"):
        planned(tmp_path, "ada/net")
    path = release.folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(InputError, match="model.safetensors has SHA-256"):
        planned(release.folder, "ada/net")
    path.unlink()
    with pytest.raises(InputError, match="model.safetensors"):
        planned(release.folder, "ada/net")
    sums = release.folder / "SHA256SUMS"
    sums.write_text(sums.read_text() + f"{'0' * 64}  ../secret\n")
    with pytest.raises(InputError, match=r"names '../secret', which is outside"):
        planned(release.folder, "ada/net")


@pytest.mark.parametrize(
    "config",
    [
        "[1]", "[" * 100_000, '{"architectures": 5}', '{"architectures": [5]}', "9" * 5000,
        '{"library": "torch", "class": 5, "architectures": [null]}',
        '{"library": "torch", "class": "os:system", "architectures": ["x\\n```"]}',
    ],
)  # fmt: skip
def test_a_hostile_configuration_is_refused_or_stays_text(release, config):
    (release.folder / "README.md").write_text("mine")  # so that the section is written
    releases.release(release.folder, {"config.json": config})
    with contextlib.suppress(InputError):
        assert planned(release.folder, "ada/net").readme.count("```") == 2


@pytest.mark.parametrize("name", ["README.md", "config.json", "deep"])
def test_links_are_not_uploaded(release, tmp_path, name):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    path = release.folder / name
    if name == "deep":
        path.symlink_to(secret)
        line = f"{hashlib.sha256(b'secret').hexdigest()}  deep/key\n"
        sums = release.folder / "SHA256SUMS"
        sums.write_text(sums.read_text() + line)
    else:
        path.rename(secret / name)
        path.symlink_to(secret / name)
    with pytest.raises(InputError, match="is a link; a release holds files alone"):
        planned(release.folder, "ada/net")


@pytest.mark.parametrize("name", ["README.md", "record.json", "SHA256SUMS", "model.safetensors"])
def test_a_pipe_in_a_release_is_refused_and_not_waited_for(no_hang, release, name):
    (release.folder / name).unlink()
    os.mkfifo(release.folder / name)
    with pytest.raises((InputError, OutputError), match=name):
        planned(release.folder, "ada/net")


def test_a_model_that_lost_its_primary_task_is_not_uploaded_by_oversight(pair, network, tmp_path):
    result = immunize(network, *pair, "erase", strength=0.1)
    score = result.record.figures["primary_score"]
    score |= {"before": 0.9, "after": 0.3, "kept": False, "most_lost": 0.05}
    export(result.model, result.record, tmp_path, allow_broken=True)
    with pytest.raises(InputError, match=r"lost its primary task.*--allow-broken"):
        planned(tmp_path, "ada/net")
    assert planned(tmp_path, "ada/net", allow_broken=True).sizes


def test_weights_of_another_run_are_refused(release, pair, network):
    other = immunize(network, *pair, "erase", strength=0.5)
    releases.release(release.folder, {"record.json": other.record.to_file()})
    with pytest.raises(InputError, match="belongs to another run than record.json"):
        planned(release.folder, "ada/net")


def test_a_hub_that_refuses_is_told_in_words(release, hub, run, monkeypatch):
    monkeypatch.setattr(hub, "fault", ConnectionError("no route"))
    done = run("push", release.folder, "ada/net")
    assert done.returncode == 1 and "ada/net was not uploaded: no route. Log in" in done.stderr
    with pytest.raises(OutputError, match="HF_TOKEN"):
        push(planned(release.folder, "ada/net"))


def test_without_the_library_the_error_names_the_command(release, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SettingsError, match=r"pip install 'immunis\[hub\]'"):
        push(planned(release.folder, "ada/net"))
