"""Two gloo processes on one machine: the same gradients and the same run as one process."""

import subprocess
import sys

import pytest
import torch

from helpers import ROOT, distributed
from immunis import SettingsError
from immunis.training.settings import Hardware


def test_two_processes_give_the_gradient_of_the_joined_batch(tmp_path):
    distributed.spawn(distributed.gradient, str(tmp_path))
    x, y = distributed.rows()
    for name, regularizer in distributed.REGULARIZERS.items():
        layer = distributed.small_layer()
        value = regularizer(layer(x), y)
        value.backward()
        value_two, *gradients = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        assert torch.allclose(value_two, value, rtol=1e-12), name
        for one, two in zip((p.grad for p in layer.parameters()), gradients, strict=True):
            assert torch.allclose(one, two, rtol=1e-9, atol=1e-12), name


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize("strategy", ["ddp", slow("fsdp")])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("probe", {}),  # one stage is narrowed
        slow("condition", {}),
        slow("imma", {}),
    ],
)
def test_two_processes_train_as_one(tmp_path, name, settings, strategy):
    distributed.spawn(distributed.train, str(tmp_path), name, settings, strategy)
    one = distributed.run(Hardware(), name, **settings).model.state_dict()
    two, _ = torch.load(tmp_path / "model0.pt", weights_only=True)
    assert list(one) == list(two)
    for key in one:
        assert torch.allclose(one[key].float(), two[key].float(), atol=2e-5), key


def the_same_as_one(folder):
    one = distributed.run(Hardware()).model.state_dict()
    for number in (0, 1):
        count, two = torch.load(folder / f"model{number}.pt", weights_only=True)
        assert count == 2
        assert all(torch.allclose(one[key], two[key], atol=2e-5) for key in one)


@pytest.mark.slow
def test_torchrun_says_how_many_processes_there_are(tmp_path):
    distributed.spawn(distributed.train_as_started, str(tmp_path))
    the_same_as_one(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_processes_with_other_data_are_refused(tmp_path):
    distributed.spawn(distributed.train_on_other_data, str(tmp_path))
    for number in (0, 1):
        said = (tmp_path / f"said{number}").read_text()
        assert "differ in: classes of harmful, harmful data" in said


@pytest.mark.slow
def test_a_script_started_by_fabric_run_takes_its_settings(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "import torch; from helpers.distributed import run\n"
        "from immunis.training.settings import Hardware\n"
        "from immunis.core.distributed import rank, world\n"
        "result = run(Hardware(precision='64-true'))\n"
        f"path = {str(tmp_path)!r} + f'/model{{rank()}}.pt'\n"
        "torch.save((world(), result.model.state_dict()), path)\n"
    )
    launcher = [sys.executable, "-m", "lightning.fabric.cli", "--accelerator", "cpu"]
    options = ["--devices", "2", "--strategy", "ddp", "--precision", "32-true"]
    said = subprocess.run(
        [*launcher, *options, str(script)],
        capture_output=True,
        text=True,
        timeout=distributed.LIMIT,
        cwd=tmp_path,
    )
    assert said.returncode == 0, said.stderr[-2000:]
    the_same_as_one(tmp_path)


def test_fabric_run_is_heeded_only_where_it_started_us(monkeypatch):
    given = Hardware(devices=3, precision="64-true")
    assert given.as_launched() == given
    monkeypatch.setenv("LT_DEVICES", "2")
    assert given.as_launched() == given
    monkeypatch.setenv("LT_CLI_USED", "1")
    monkeypatch.setenv("LT_ACCELERATOR", "gpu")
    assert given.as_launched() == Hardware(device="cuda", devices=2, precision="64-true")
    monkeypatch.setenv("LT_DEVICES", "auto")
    with pytest.raises(SettingsError, match="devices is 'auto'; give a number"):
        given.as_launched()


@pytest.mark.slow
def test_processes_agree_on_updated_statistics(tmp_path):
    distributed.spawn(distributed.train, str(tmp_path), "condition", {"batchnorm": "update"})
    first, second = (torch.load(tmp_path / f"model{r}.pt", weights_only=True) for r in (0, 1))
    assert first[1] == second[1]
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
