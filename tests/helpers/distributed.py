"""What the tests of distributed runs do in two gloo processes on one machine."""

import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from helpers import faulty
from helpers.networks import small_net, tasks
from helpers.training import objective
from immunis import InputError, Task
from immunis.core.distributed import leave_processes, world
from immunis.methods.probe import visible
from immunis.models.find_cut import cut
from immunis.theory.feature_maps import narrowed
from immunis.theory.probes import rho
from immunis.theory.regularizers import feature_hessian, r_ill, r_well
from immunis.training.loop import fit
from immunis.training.settings import Hardware, Training

LIMIT = 300  # seconds; generous, since other tests may run beside


REGULARIZERS = {
    "r_well": lambda z, y: r_well(feature_hessian(z, across=True)),
    "r_ill": lambda z, y: r_ill(feature_hessian(z, across=True)),
    "rho": lambda z, y: rho(z, y, across=True),
    "narrowed": lambda z, y: rho(narrowed(z, 3, torch.Generator().manual_seed(3)), y, across=True),
    "visible": visible,
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
    whole, goal = cut(small_net(), primary.train.first(2), 4), objective(name, **more)
    training = Training(
        steps=4, batch=48, harmful_batch=96, rate=1e-3, optimizer="sgd", evaluate=2,
        batchnorm=batchnorm,
    )  # fmt: skip
    return fit(whole, goal, primary, harmful, training, hardware, folder=folder)


def train(rank, port, folder, name, settings, strategy="ddp"):
    start(rank, port)
    result = run(Hardware(devices=2, strategy=strategy), name, folder, **settings)
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
    try:
        fit(whole, objective("probe"), primary, harmful, Training(steps=2, evaluate=1))
    except InputError as error:
        Path(folder, f"said{rank}").write_text(str(error))
