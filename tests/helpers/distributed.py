"""What the tests of distributed runs do in two gloo processes on one machine."""

import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from helpers import faulty
from helpers.networks import small_net, tasks
from immunis import InputError, Task
from immunis.core.distributed import joined, world
from immunis.core.lost_process import leave_processes
from immunis.methods import get_method
from immunis.methods.probe import hold, total_variance
from immunis.models.find_head import cut
from immunis.theory.feature_maps import even, fourier, white
from immunis.theory.regularizers import feature_hessian, r_ill, r_well
from immunis.theory.rho import nu, recalled, rho
from immunis.training.hardware import Hardware
from immunis.training.loop import fit
from immunis.training.settings import Training

LIMIT = 300  # seconds; generous, since other tests may run beside


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


def small_layer():
    torch.manual_seed(0)
    return nn.Linear(6, 5).double()


def rows():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    # the first 20 rows hold classes 0 and 1 alone: classes are missing on each process
    labels = torch.cat([torch.arange(20) % 2, 2 + torch.arange(20) % 2])
    return x, nn.functional.one_hot(labels, 4).double()


def start(rank, port):
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", RANK=str(rank),
        LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", GROUP_RANK="0", ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="test",
    )  # fmt: skip
    torch.set_num_threads(1)


def gradient(rank, port, folder):
    start(rank, port)
    dist.init_process_group("gloo")
    x, y = rows()
    mine = slice(0, 20) if rank == 0 else slice(20, 40)
    for name, regularizer in REGULARIZERS.items():
        layer = nn.parallel.DistributedDataParallel(small_layer())
        value = regularizer(layer(x[mine]), y[mine])
        value.backward()
        if rank == 0:
            found = [value.detach(), *(p.grad for p in layer.parameters())]
            torch.save(found, f"{folder}/{name}.pt")
    del layer, value  # see leave_processes()
    leave_processes()


def spawn(call, *arguments):
    """Run two processes; once more on another port if they never find each other."""
    faulty.server()  # processes are forked from a warm one
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = mp.start_processes(
            call, (port, *arguments), nprocs=2, join=False, start_method="forkserver"
        )
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            if context.join(timeout=5):
                return
        for process in context.processes:
            process.kill()
    raise TimeoutError(f"two processes did not finish in {LIMIT} seconds, twice")


def run(hardware, name="probe", folder=None, batchnorm="freeze", **more):
    primary, harmful = tasks()
    whole = cut(small_net(), primary.train.first(2), 4)
    method = get_method(name)
    objective = method.objective(method.configure(more, network=True), whole)
    training = Training(
        steps=4, batch=48, harmful_batch=96, rate=1e-3, optimizer="sgd", evaluate=2,
        batchnorm=batchnorm,
    )  # fmt: skip
    return fit(whole, objective, primary, harmful, training, hardware, folder=folder)


def train(rank, port, folder, name, settings):
    start(rank, port)
    result = run(Hardware(devices=2, strategy="ddp"), name, folder, **settings)
    torch.save((result.model.state_dict(), result.history), f"{folder}/model{rank}.pt")


def train_as_started(rank, port, folder):
    start(rank, port)
    result = run(Hardware())
    torch.save((world(), result.model.state_dict()), f"{folder}/model{rank}.pt")


def train_on_other_data(rank, port, folder):
    start(rank, port)
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
