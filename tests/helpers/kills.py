"""Commands killed at random moments and at every write, and what is left of them.

A kill is sound if the folder then holds the old state or the new one, whole, and if the next run
makes of it what an undisturbed run makes.
"""

import hashlib
import shutil
import signal
import socket
import time
from dataclasses import astuple, dataclass

import numpy as np
import torch

from helpers import faulty
from immunis import InputError, Record
from immunis.core.files import make_folder, unsealed
from immunis.core.hashing import tensors_digest
from immunis.core.releases import STAGE, SUMS, settle
from immunis.models.weights import read_tensors
from immunis.training import checkpoint as checkpoints

LIMIT = 600  # seconds that a process may take; generous, since other tests may run beside


@dataclass
class Found:
    """What kills have left."""

    kills: int = 0
    torn: int = 0  # folders that hold neither the old nor the new state, or a torn file
    hangs: int = 0  # runs that did not end within LIMIT
    resumed: int = 0
    differ: int = 0  # resumed runs whose result is not that of an undisturbed one

    def __add__(self, other):
        both = zip(astuple(self), astuple(other), strict=True)
        return Found(*(one + two for one, two in both))


def timeless(value):
    """A record's values without what the clock decides."""
    if isinstance(value, dict):
        clock = ("seconds", "created", "training_seconds")
        return {key: timeless(item) for key, item in value.items() if key not in clock}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def state(folder):
    """What a folder holds, after proof that nothing in it is torn."""
    settle(folder)
    for path in folder.rglob("*"):
        if path.suffix == ".safetensors":
            read_tensors(path)
        elif path.name == checkpoints.NAME:
            checkpoints.read(path)
        elif path.suffix == ".json" and path.name != "config.json":
            unsealed(path, "file")
    if not (folder / SUMS).exists():
        assert not (folder / "record.json").exists()
        return None
    for line in (folder / SUMS).read_text().splitlines():
        value, name = line.split("  ")
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == value, name
    tensors = [tensors_digest(read_tensors(path)) for path in sorted(folder.glob("*.safetensors"))]
    return timeless(Record.load(folder / "record.json").to_dict()), tensors


class Nursery:
    """Runs commands in processes forked from a warm one, and keeps what they should give."""

    def __init__(self, base):
        self.base, self.context = base, faulty.server()
        self.olds, self.news, self.seconds = {}, {}, {}

    def start(self, what, folder, die_at=None, largest=None, log="log"):
        arguments = (what, str(folder), str(self.base / log), die_at, largest)
        process = self.context.Process(target=faulty.run, args=arguments)
        process.start()
        return process

    def finish(self, what, folder):
        process = self.start(what, folder)
        process.join(LIMIT)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError
        assert process.exitcode == 0, (self.base / "log").read_text()[-2000:]
        return state(folder)

    def expect(self, what):
        """Run a command twice without a fault: an older release, and what should come of it."""
        if what not in self.news:
            faulty.write_recipes(self.base, seed=1)
            try:
                self.olds[what] = self.finish(what, self.base / f"{what}-old")
            finally:  # one fault is one failed test, not all that follow it
                faulty.write_recipes(self.base, seed=0)
            began = time.monotonic()
            self.news[what] = self.finish(what, self.base / f"{what}-new")
            self.seconds[what] = time.monotonic() - began
            assert what == "sweep" or self.olds[what] != self.news[what]
        return self.olds[what], self.news[what]

    def older(self, what, name):
        """A folder with an older release in it, and nothing of the run that is to come."""
        folder = self.base / name
        folder.mkdir()
        for path in (self.base / f"{what}-old").iterdir():
            if path.is_file():
                shutil.copy(path, folder)
        return folder

    def look(self, found, what, folder):
        """Judge a folder after a kill; return True if its state is the new one, None if torn."""
        found.kills += 1
        try:
            left = state(folder)
        except (AssertionError, InputError, OSError):
            left = ()
        if left in (self.olds[what], self.news[what]):
            return left == self.news[what]
        found.torn += 1
        return None

    def resume(self, found, what, folder):
        """Run a killed command again and judge what it makes."""
        found.resumed += 1
        try:
            same = self.finish(what, folder) == self.news[what]
            found.differ += not same or (folder / STAGE).exists()
        except TimeoutError:
            found.hangs += 1
        except (AssertionError, InputError):
            found.differ += 1


def at_random(nursery, what, kills, seed=0, deadline=np.inf):
    """Kill a command at random moments, up to five times before it may finish."""
    nursery.expect(what)
    rng, found, life = np.random.default_rng(seed), Found(), 0
    while found.kills < kills and time.monotonic() < deadline:
        folder, life = nursery.older(what, f"{what}-life-{seed}-{life}"), life + 1
        for _ in range(5):
            process = nursery.start(what, folder)
            time.sleep(rng.uniform(0, nursery.seconds[what]))
            process.kill()
            process.join()
            if process.exitcode == 0:
                break
            assert process.exitcode == -signal.SIGKILL, (nursery.base / "log").read_text()
            nursery.look(found, what, folder)
        nursery.resume(found, what, folder)
        shutil.rmtree(folder)
    return found


def at_writes(nursery, what, every=1, deadline=np.inf):
    """Kill a command at each of its writes in turn; resume every third of these runs."""
    nursery.expect(what)
    found, point, turned = Found(), 0, False
    while time.monotonic() < deadline:
        folder = nursery.older(what, f"{what}-write-{point}")
        process = nursery.start(what, folder, die_at=point)
        process.join(LIMIT)
        if process.exitcode == 0:
            break
        if process.exitcode is None:
            process.kill()
            found.hangs += 1
            break
        assert process.exitcode == -signal.SIGKILL, (nursery.base / "log").read_text()
        new = nursery.look(found, what, folder)
        found.torn += turned and new is False  # the new state came once and went again
        turned = turned or bool(new)
        if point % (3 * every) == 0:
            nursery.resume(found, what, folder)
        shutil.rmtree(folder)
        point += every
    return found


def train(nursery, folder, processes, **more):
    """Train in that many processes; return their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [(rank, port, str(folder), processes) for rank in range(processes)]
    started = [
        nursery.context.Process(target=faulty.train, args=each, kwargs=more) for each in arguments
    ]
    for process in started:
        process.start()
    deadline = time.monotonic() + LIMIT
    for process in started:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()
    return [process.exitcode for process in started]


def lose_process(nursery, base, before, after, strategy="ddp"):
    """Kill one of the processes of a training, and resume it in another number of them."""
    straight, broken = (make_folder(base / name) for name in ("straight", "broken"))
    assert train(nursery, straight, 1) == [0]
    died = train(nursery, broken, before, die_at=5, strategy=strategy)
    assert died == [1, -signal.SIGKILL][2 - before :], died
    assert checkpoints.read(broken / checkpoints.NAME)["step"] == 4
    assert train(nursery, broken, after, resume=True, strategy=strategy) == [0] * after
    one, two = (torch.load(place / "model0.pt", weights_only=True) for place in (straight, broken))
    assert [row["step"] for row in two[1]] == [row["step"] for row in one[1]]
    for key in one[0]:
        assert torch.allclose(one[0][key].float(), two[0][key].float(), atol=2e-5), key
