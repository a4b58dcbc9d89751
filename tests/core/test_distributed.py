"""Two gloo processes on one machine: the same gradients and the same run as one process."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from helpers import ROOT
from helpers.networks import small_net, tasks
from immunis import InputError, SettingsError, Task
from immunis.core.distributed import joined, world
from immunis.core.lost_process import leave_processes
from immunis.methods import get_method
from immunis.methods.probe import hold, total_variance
from immunis.models.find_head import cut
from immunis.theory.feature_maps import even, fourier, white
from immunis.theory.neighbours import nu
from immunis.theory.regularizers import feature_hessian, r_ill, r_well
from immunis.theory.rho import recalled, rho
from immunis.training.hardware import Hardware
from immunis.training.loop import fit
from immunis.training.settings import Training


def lifted(z):
    """A few random features of the rows of all processes, the same ones on each."""
    draws = torch.Generator().manual_seed(3)
    return fourier(white(joined(z), 1e-3), 12, 0.1, draws)


REGULARIZERS = {
    "r_well": lambda z, y: r_well(feature_hessian(z, across=True)),
    "r_ill": lambda z, y: r_ill(feature_hessian(z, across=True)),
    "rho": lambda z, y: rho(z, y, across=True),
    "lifted": lambda z, y: rho(lifted(z), joined(y)),
    "even": lambda z, y: rho(even(joined(z)), joined(y)),
    "near": lambda z, y: nu(even(joined(z)), joined(y)),
    "recall": lambda z, y: rho(z, recalled(z.detach().square(), y), across=True),
    "collapse": lambda z, y: total_variance(z).log(),
    "hold": lambda z, y: hold(
        SimpleNamespace(primary={"": z}, teacher=(None, z.detach() + y[:, :1]))
    ),
}


def _layer():
    torch.manual_seed(0)
    return nn.Linear(6, 5).double()


def _data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    # the first 20 rows hold classes 0 and 1 alone: classes are missing on each process
    labels = torch.cat([torch.arange(20) % 2, 2 + torch.arange(20) % 2])
    return x, nn.functional.one_hot(labels, 4).double()


def _start(rank, port):
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", RANK=str(rank),
        LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", GROUP_RANK="0", ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="test",
    )  # fmt: skip
    torch.set_num_threads(1)


def _gradient(rank, port, folder):
    _start(rank, port)
    dist.init_process_group("gloo")
    x, y = _data()
    mine = slice(0, 20) if rank == 0 else slice(20, 40)
    for name, regularizer in REGULARIZERS.items():
        layer = nn.parallel.DistributedDataParallel(_layer())
        value = regularizer(layer(x[mine]), y[mine])
        value.backward()
        if rank == 0:
            found = [value.detach(), *(p.grad for p in layer.parameters())]
            torch.save(found, f"{folder}/{name}.pt")
    del layer, value  # see leave_processes()
    leave_processes()


def _spawn(call, *arguments):
    """Run two processes; once more on another port where they never find each other."""
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = mp.start_processes(
            call, (port, *arguments), nprocs=2, join=False, start_method="spawn"
        )
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            if context.join(timeout=5):
                return
        for process in context.processes:
            process.kill()
    raise TimeoutError("two processes did not finish in 90 seconds, twice")


def test_two_processes_give_the_gradient_of_the_joined_batch(tmp_path):
    _spawn(_gradient, str(tmp_path))
    x, y = _data()
    for name, regularizer in REGULARIZERS.items():
        layer = _layer()
        value = regularizer(layer(x), y)
        value.backward()
        value_two, *gradients = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        assert torch.allclose(value_two, value, rtol=1e-12), name
        for one, two in zip((p.grad for p in layer.parameters()), gradients, strict=True):
            assert torch.allclose(one, two, rtol=1e-9, atol=1e-12), name


def _run(hardware, name="probe", folder=None, batchnorm="freeze", **more):
    primary, harmful = tasks()
    whole = cut(small_net(), primary.train.first(2), 4)
    method = get_method(name)
    objective = method.objective(method.configure(more, network=True), whole)
    training = Training(
        steps=4, batch=48, harmful_batch=96, rate=1e-3, optimizer="sgd", evaluate=2,
        batchnorm=batchnorm,
    )  # fmt: skip
    return fit(whole, objective, primary, harmful, training, hardware, folder=folder)


def _train(rank, port, folder, name, settings):
    _start(rank, port)
    result = _run(Hardware(devices=2, strategy="ddp"), name, folder, **settings)
    torch.save((result.model.state_dict(), result.history), f"{folder}/model{rank}.pt")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("probe", {"attacker_steps": 1, "depths": 2, "collapse": 0.5, "keep": 50.0, "hold": 1.0}),
        ("probe", {"lift": 24, "even": True, "near": 5.0, "recall": True}),
        ("condition", {}),
        ("imma", {}),
    ],
)
def test_two_processes_train_as_one(tmp_path, name, settings):
    _spawn(_train, str(tmp_path), name, settings)
    one = _run(Hardware(), name, **settings).model.state_dict()
    two, _ = torch.load(tmp_path / "model0.pt", weights_only=True)
    assert list(one) == list(two)
    for key in one:
        assert torch.allclose(one[key].float(), two[key].float(), atol=2e-5), key


def _train_as_started(rank, port, folder):
    _start(rank, port)
    result = _run(Hardware())
    torch.save((world(), result.model.state_dict()), f"{folder}/model{rank}.pt")


def test_torchrun_says_how_many_processes_there_are(tmp_path):
    _spawn(_train_as_started, str(tmp_path))
    one = _run(Hardware()).model.state_dict()
    for number in (0, 1):
        count, two = torch.load(tmp_path / f"model{number}.pt", weights_only=True)
        assert count == 2
        assert all(torch.allclose(one[key], two[key], atol=2e-5) for key in one)


def _train_on_other_data(rank, port, folder):
    _start(rank, port)
    primary, harmful = tasks()
    x, y = harmful.train.tensors()
    if rank == 1:
        harmful = Task((x[y != 2], y[y != 2]), name="harmful")  # lacks a class
    whole = cut(small_net(), primary.train.first(2), 4)
    method = get_method("probe")
    objective = method.objective(method.configure({}, network=True), whole)
    try:
        fit(whole, objective, primary, harmful, Training(steps=2, evaluate=1))
    except InputError as error:
        Path(folder, f"said{rank}").write_text(str(error))


@pytest.mark.filterwarnings("ignore")
def test_processes_with_other_data_are_refused(tmp_path):
    _spawn(_train_on_other_data, str(tmp_path))
    for number in (0, 1):
        said = (tmp_path / f"said{number}").read_text()
        assert "differ in: classes of harmful, harmful data" in said


def test_a_script_started_by_fabric_run_takes_its_settings(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(ROOT / 'tests')!r}]\n"
        "import torch; from test_distributed import _run\n"
        "from immunis.training.hardware import Hardware\n"
        "from immunis.core.distributed import rank, world\n"
        "result = _run(Hardware(precision='64-true'))\n"
        f"torch.save((world(), result.model.state_dict()), {str(tmp_path)!r} + f'/{{rank()}}.pt')\n"
    )
    said = subprocess.run(
        [
            *(sys.executable, "-m", "lightning.fabric.cli", "--accelerator", "cpu"),
            *("--devices", "2", "--strategy", "ddp", "--precision", "32-true", str(script)),
        ],
        capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr[-2000:]
    one = _run(Hardware()).model.state_dict()
    for number in (0, 1):
        count, two = torch.load(tmp_path / f"{number}.pt", weights_only=True)
        assert count == 2
        assert all(torch.allclose(one[key], two[key], atol=2e-5) for key in one)


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


def test_processes_agree_on_updated_statistics(tmp_path):
    _spawn(_train, str(tmp_path), "condition", {"batchnorm": "update"})
    first, second = (torch.load(tmp_path / f"model{r}.pt", weights_only=True) for r in (0, 1))
    assert first[1] == second[1]
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
