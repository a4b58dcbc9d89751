"""What the tests of faults run in processes of their own, forked from one that is warm.

Importing torch takes seconds, so a server process imports this module once and forks for every
trial: a trial costs what its own work costs.
"""

import contextlib
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

from helpers.networks import small_net, tasks
from helpers.training import objective
from immunis import LostProcessError, Record
from immunis.cli import main as cli
from immunis.cli.console import held, take
from immunis.core import distributed
from immunis.core.files import key_of
from immunis.core.jobs import Job, Run, sweep
from immunis.core.releases import release
from immunis.models.find_cut import cut
from immunis.training import checkpoint
from immunis.training.loop import fit
from immunis.training.settings import Hardware, Training

for name in ("report.card", "methods.record", "report.export", "recipes.pipeline", "report.tables"):
    importlib.import_module(f"immunis.{name}")  # the commands import them late
for name in ("lightning.fabric", "scipy.optimize", "torch.utils.tensorboard"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
torch.set_num_threads(1)

DATA = "[data]\nsource = 'npz'\nprimary = 'p.npz'\nharmful = 'h.npz'\n"
TRAINING = (
    "[model]\nnetwork = [8, 6]\n[pretrain]\nsteps = 3\nbatch = 16\nevaluate = 3\n"
    "[training]\nsteps = 5\nbatch = 16\nharmful_batch = 24\nevaluate = 5\nrate = 0.01\n"
)
RECIPES = {
    "linear": DATA + "[method]\nname = 'frontier'\n",
    "network": DATA + TRAINING + "[method]\nname = 'probe'\nweight = 10\n",
    "audit": DATA + TRAINING + "[audit]\nattacks = ['ridge', 'knn']\nseeds = 1\nbudget = 3\n"
    "[[audit.methods]]\nname = 'probe'\nweight = 10\n",
}
COMMANDS = {
    "linear": ["immunize", "linear.toml"],
    "network": ["immunize", "network.toml", "--resume"],
    "audit": ["audit", "audit.toml"],
    "sweep": None,
}


def server():
    """A context whose processes are forked from a warm one."""
    context = multiprocessing.get_context("forkserver")
    paths = [str(Path(__file__).parents[1]), str(Path(cli.__file__).parents[2])]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    context.set_forkserver_preload(["helpers.faulty"])
    return context


def write_recipes(folder, seed):
    """Two small tasks and recipes on them."""
    rng = np.random.default_rng(5)
    for name in "ph":
        x, y = rng.normal(size=(80, 6)), np.arange(80) // 2 % 2
        np.savez(
            folder / f"{name}.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:]
        )
    for name, text in RECIPES.items():
        (folder / f"{name}.toml").write_text(f"seed = {seed}\n{text}")


def square(number):
    time.sleep(0.005)
    return {"square": number**2, "root": number**0.5}


def run_sweep(folder):
    jobs = {key_of(n): Job(square, (n,)) for n in range(12)}
    found = sweep(jobs, Run(folder=folder / "jobs"))
    record = Record("sweep", "squares", {"results": list(found.values())})
    release(folder, {"record.json": record.to_file()})


def run(what, folder, log, die_at=None, largest=None):
    """Run a command in the folder above its output.

    It dies at its n-th write if asked to, or finds the disk full after so many bytes a file.
    """
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream.fileno())
    os.chdir(Path(folder).parent)
    if die_at is not None:
        _die_at(die_at)
    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    if COMMANDS[what] is None:
        with held:
            run_sweep(take(folder))
        return
    sys.argv = ["immunis", *COMMANDS[what], "--output", str(folder), "--json"]
    cli.main()


def orphan(folder, launched):
    """Watch in a process whose parent ends at once; it writes what it has lived to see."""
    distributed._POLL = distributed._GRACE = 0.05
    os.environ["LOCAL_RANK"] = "1" if launched else "0"
    ready, tell = os.pipe()
    if os.fork():
        os.read(ready, 1)
        os._exit(0)
    os.dup2(os.open(f"{folder}/said", os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    distributed.watch_processes()
    os.write(tell, b"x")
    time.sleep(600.0 if launched else 1.0)
    distributed.leave_processes()
    Path(folder, "lived").write_text(" ".join(t.name for t in threading.enumerate()))
    os._exit(0)


STEPS = 6


def train(rank, port, folder, processes, die_at=None, resume=False, late=False, strategy="ddp"):
    """Train a small network as one of several processes.

    If asked, the last one dies at a step, or its clock says that a checkpoint is always due.
    """
    if late and rank == processes - 1:
        checkpoint.EVERY = 0.0
    if processes > 1:
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(processes),
            RANK=str(rank), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(processes), GROUP_RANK="0",
            ROLE_RANK=str(rank), ROLE_WORLD_SIZE=str(processes), TORCHELASTIC_RUN_ID="test",
        )  # fmt: skip
    primary, harmful = tasks()
    whole = cut(small_net(), primary.train.first(2), 4)
    settings = Training(
        steps=STEPS, batch=48, harmful_batch=96, rate=1e-3, optimizer="sgd", evaluate=3
    )

    def progress(what, share):
        if die_at is not None and rank == processes - 1 and share >= die_at / STEPS:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        result = fit(
            whole, objective("probe"), primary, harmful,
            settings, Hardware(devices=processes, strategy=strategy if processes > 1 else "auto"),
            folder=folder, resume=resume, progress=progress,
        )  # fmt: skip
    except LostProcessError as error:
        (Path(folder) / f"said-{rank}").write_text(str(error))
        sys.exit(1)
    torch.save((result.model.state_dict(), result.history), f"{folder}/model{rank}.pt")


def _die_at(number):
    """Kill this process as it begins its n-th call that changes what is on disk."""
    left = [number]

    def dying(call):
        def wrapper(*arguments, **more):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(*arguments, **more)

        return wrapper

    for name in ("fsync", "replace", "rmdir", "unlink"):
        setattr(os, name, dying(getattr(os, name)))
