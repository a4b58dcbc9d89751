"""Faults: killed processes, full disks, closed and vanished folders, two writers, damaged files."""

import errno
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from helpers import faulty
from helpers.networks import small_net, tasks
from immunis import InputError, OutputError, Record, SettingsError, immunize
from immunis.core.files import (
    LOCK,
    OLD,
    SCRAP,
    STAGE,
    SUMS,
    hold,
    make_folder,
    release,
    settle,
    unsealed,
    write_text,
)
from immunis.core.hashing import tensors_digest
from immunis.core.jobs import Job, Run, sweep
from immunis.core.progress import silent
from immunis.data.sources import images
from immunis.models.weights import load_weights, read_tensors
from immunis.recipes import load_recipe
from immunis.recipes.pipeline import original
from immunis.report.export import weights
from immunis.training import checkpoint as checkpoints

KILLS = int(os.environ.get("IMMUNIS_KILLS", "60"))  # make faults: 240
LIMIT = 600  # seconds that a process may take; generous, since other tests may run beside


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


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


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    return Nursery(tmp_path_factory.mktemp("faults"))


@pytest.mark.slow
def test_killed_at_random_moments_it_resumes_to_the_same_result(nursery):
    rng, kills, lives = np.random.default_rng(0), 0, 0
    for what in faulty.COMMANDS:
        old, new = nursery.expect(what)
        wanted = kills + KILLS // len(faulty.COMMANDS)
        while kills < wanted:
            folder, lives = nursery.older(what, f"life-{lives}"), lives + 1
            for _ in range(5):
                process = nursery.start(what, folder)
                time.sleep(rng.uniform(0, nursery.seconds[what]))
                process.kill()
                process.join()
                found = state(folder)
                assert found in (old, new), what
                if process.exitcode == 0:
                    break
                assert process.exitcode == -signal.SIGKILL, (nursery.base / "log").read_text()
                kills += 1
            assert nursery.finish(what, folder) == new, what
            assert not (folder / STAGE).exists()
    assert kills >= KILLS // 4 * 4


@pytest.mark.parametrize("what", ["linear", slow("network"), slow("audit"), slow("sweep")])
def test_killed_at_any_write_it_leaves_the_old_or_the_new_state(nursery, what):
    every = 1 if KILLS > 60 else 7
    old, new = nursery.expect(what)
    seen, point = [], 0
    while True:
        folder = nursery.older(what, f"{what}-write-{point}")
        process = nursery.start(what, folder, die_at=point)
        process.join(LIMIT)
        seen.append(state(folder))
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL, (nursery.base / "log").read_text()
        if point % (3 * every) == 0:
            assert nursery.finish(what, folder) == new
        point += every
    assert seen[0] == old
    assert seen[-1] == new
    assert all(one in (old, new) for one in seen)
    assert seen == sorted(seen, key=lambda one: one == new)  # it turns once


def locked_by(process, folder):
    """Wait until a command holds its folder."""
    deadline = time.monotonic() + LIMIT
    while not (folder / LOCK).exists() or not (folder / LOCK).read_text():
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.001)


def test_the_folder_of_a_running_command_is_refused_and_freed_by_its_death(nursery):
    nursery.expect("network")
    folder = nursery.base / "shared"
    process = nursery.start("network", folder)
    locked_by(process, folder)
    os.kill(process.pid, signal.SIGSTOP)
    with (
        pytest.raises(OutputError, match=rf"in use by process {process.pid} on .*--output"),
        hold(folder),
    ):
        pass
    process.kill()
    process.join()
    with hold(folder):  # the lock went with its process; the file alone holds nobody up
        assert str(os.getpid()) in (folder / LOCK).read_text()
    assert not (folder / LOCK).exists()


def test_of_two_commands_in_one_folder_one_is_refused(nursery):
    old, new = nursery.expect("network")
    folder = nursery.older("network", "two")
    first = nursery.start("network", folder)
    locked_by(first, folder)
    os.kill(first.pid, signal.SIGSTOP)
    second = nursery.start("network", folder, log="second")
    second.join(LIMIT)
    os.kill(first.pid, signal.SIGCONT)
    first.join(LIMIT)
    assert (first.exitcode, second.exitcode) == (0, 1)
    refused = " ".join((nursery.base / "second").read_text().split())
    assert f"in use by process {first.pid} on" in refused
    assert state(folder) == new


@pytest.mark.parametrize("what", ["linear", "network"])
def test_a_full_disk_is_said_and_the_old_release_is_left_whole(nursery, what):
    old, _ = nursery.expect(what)
    folder = nursery.older(what, f"{what}-full")
    process = nursery.start(what, folder, largest=3000, log=f"full-{what}")
    process.join(LIMIT)
    said = " ".join((nursery.base / f"full-{what}").read_text().split())
    assert process.exitcode == 1, said
    assert "File too large" in said
    assert "Traceback" not in said
    assert state(folder) == old
    assert not list(folder.rglob(f"{SCRAP}*"))


def test_no_space_at_any_write_leaves_the_old_release(tmp_path, monkeypatch):
    files = {"a.txt": "old a", "b.txt": "old b"}
    release(tmp_path, files)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    real, left = os.fsync, [0]

    def full(handle):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    for point in range(6):  # a file and its folder for each of two files and their checksums
        left[0] = point
        with pytest.raises(OutputError, match="No space left"):
            release(tmp_path, {"a.txt": "new a", "b.txt": "new b"})
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_folder_that_is_closed_to_writing_is_said(tmp_path, monkeypatch, code):
    def closed(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("immunis.core.files.tempfile.mkstemp", closed)
    monkeypatch.setattr("immunis.core.files.tempfile.TemporaryFile", closed)
    for attempt in (make_folder, lambda path: release(path, {"a": "x"})):
        with pytest.raises(OutputError, match="cannot write to output folder .* --output"):
            attempt(tmp_path)
    with pytest.raises(OutputError, match=os.strerror(code)):
        write_text(tmp_path / "a", "x")
    assert not list(tmp_path.iterdir())


def test_a_link_in_the_place_of_an_output_is_replaced_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "record.json").symlink_to(tmp_path / "elsewhere")
    release(tmp_path / "out", {"record.json": "new"})
    assert (tmp_path / "elsewhere").read_text() == "precious"
    assert (tmp_path / "out" / "record.json").read_text() == "new"
    (tmp_path / "out" / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="cannot lock"), hold(tmp_path / "out"):
        pass
    assert (tmp_path / "elsewhere").read_text() == "precious"


def test_a_vanished_data_folder_is_said_and_the_run_resumes_when_it_is_back(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("p", "h"):
        for split, count in (("train", 30), ("test", 10)):
            for label in "ab":
                place = tmp_path / "data" / name / split / label
                place.mkdir(parents=True)
                for row in range(count):
                    pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(place / f"{row}.png")

    def run(folder, progress=silent):
        found = images("p", "h", size=8, folder=str(tmp_path / "data"))
        training = {"steps": 4, "evaluate": 4, "batch": 16, "harmful_batch": 24, "held_out": 0.2}
        return immunize(
            small_net(2), found.primary, found.harmful, "probe",
            training=training, folder=folder, resume=True, progress=progress,
        )  # fmt: skip

    def vanish(what, share):
        if share == 0.5:
            (tmp_path / "data").rename(tmp_path / "away")

    with pytest.raises(InputError, match="cannot be read, the last .*No such file"):
        run(tmp_path / "run", vanish)
    (tmp_path / "away").rename(tmp_path / "data")
    assert checkpoints.read(tmp_path / "run" / checkpoints.NAME)["step"] in (1, 2)
    again, straight = run(tmp_path / "run"), run(tmp_path / "straight")
    assert tensors_digest(again.model.state_dict()) == tensors_digest(straight.model.state_dict())


def flip(path, place=-3):
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_damaged_records_and_weights_are_named_and_refused(tmp_path):
    path = Record("bench", "x", {"rir": 12.5}).save(tmp_path / "record.json")
    path.write_text(path.read_text().replace("12.5", "99.5"))
    with pytest.raises(InputError, match=r"record\.json does not match its checksum"):
        Record.load(path)
    model = torch.nn.Linear(3, 2)
    (tmp_path / "w.safetensors").write_bytes(weights(model))
    load_weights(model, tmp_path / "w.safetensors")
    flip(tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"w\.safetensors do not match their checksum"):
        load_weights(model, tmp_path / "w.safetensors")


def test_damaged_results_and_kept_networks_are_said_and_made_again(tmp_path):
    jobs = {"a": Job(faulty.square, (2,)), "b": Job(faulty.square, (3,))}
    found = sweep(jobs, Run(folder=tmp_path / "jobs"))
    path = tmp_path / "jobs" / "a.json"
    path.write_text(path.read_text().replace('"square": 4', '"square": 5'))
    with pytest.warns(UserWarning, match=r"a\.json does not match its checksum.*runs again"):
        assert sweep(jobs, Run(folder=tmp_path / "jobs")) == found
    faulty.write_recipes(tmp_path, 0)
    recipe = load_recipe(tmp_path / "network.toml")
    data = recipe.tasks()
    first = original(recipe, data, folder=tmp_path / "models")
    flip(next((tmp_path / "models").glob("*.safetensors")))
    with pytest.warns(UserWarning, match="checksum.*trained again"):
        again = original(recipe, data, folder=tmp_path / "models")
    assert tensors_digest(again.state_dict()) == tensors_digest(first.state_dict())


def test_results_in_each_others_place_are_said_and_made_again(tmp_path):
    jobs = {"a": Job(faulty.square, (2,)), "b": Job(faulty.square, (3,))}
    found = sweep(jobs, Run(folder=tmp_path))
    shutil.copy(tmp_path / "b.json", tmp_path / "a.json")
    with pytest.warns(UserWarning, match=r"a\.json belongs to another job. The job runs again"):
        assert sweep(jobs, Run(folder=tmp_path)) == found


@pytest.mark.parametrize("key", ["../../escaped", "/tmp/a", "a/b", "", ".", "a\0b", "x" * 101])
def test_a_job_key_that_is_no_plain_word_is_refused(tmp_path, key):
    with pytest.raises(SettingsError, match="job key .*expected up to 100 letters"):
        sweep({key: Job(faulty.square, (2,))}, Run(folder=tmp_path / "jobs"))
    assert not list(tmp_path.iterdir())


def test_special_floats_of_a_job_are_strict_json_and_come_back(tmp_path):
    jobs = {"a": Job(float, ("inf",)), "b": Job(float, ("nan",))}
    for _ in range(2):
        found = sweep(jobs, Run(folder=tmp_path))
        assert found["a"] == np.inf and np.isnan(found["b"])
    strict = json.loads((tmp_path / "b.json").read_text(), parse_constant=pytest.fail)
    assert strict["result"] == "NaN"


def test_equal_weights_are_equal_files():
    torch.manual_seed(0)
    model, record = torch.nn.Linear(3, 2), Record("immunize", "é", {}, {"method": "probe"})
    files = [weights(model, record) for _ in range(20)]
    assert len(set(files)) == 1
    start = 8 + int.from_bytes(files[0][:8], "little")
    assert start % 8 == 0 and safetensors.torch.load(files[0])["weight"].equal(model.weight)


def test_scraps_of_killed_processes_are_swept_and_other_files_stay(tmp_path):
    names = {f"{SCRAP}old": OLD + 60, f"{SCRAP}young": 0.0, "mine": OLD + 60}
    for name, age in names.items():
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, times=(time.time() - age,) * 2)
    with hold(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{SCRAP}young", "mine"]


def test_checksums_of_a_folder_cover_all_that_was_released_into_it(tmp_path):
    release(tmp_path, {"a.txt": "one", "b.txt": "two"})
    release(tmp_path, {"b.txt": "three"})
    lines = (tmp_path / SUMS).read_text().splitlines()
    assert lines == [
        f"{hashlib.sha256(text).hexdigest()}  {name}"
        for name, text in (("a.txt", b"one"), ("b.txt", b"three"))
    ]


def test_the_lock_leaves_no_folder_behind(tmp_path):
    with hold(tmp_path / "a" / "b"):
        pass
    assert not (tmp_path / "a").exists()


def test_a_saved_record_is_json_with_its_digest(tmp_path):
    record = Record("bench", "x", {"nan": float("nan")})
    values = json.loads(record.save(tmp_path / "r.json").read_text())
    assert values.pop("checksum") == record.digest() == Record.load(tmp_path / "r.json").digest()
    assert values == record.to_dict()


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


@pytest.mark.parametrize("launched", [False, True])
def test_a_run_outlives_its_shell_and_not_its_launcher(nursery, tmp_path, launched):
    nursery.context.Process(target=faulty.orphan, args=(str(tmp_path), launched)).start()
    told, deadline = [tmp_path / name for name in ("said", "lived")], time.monotonic() + LIMIT
    while not any(path.exists() and path.read_text() for path in told):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    said = (tmp_path / "said").read_text()
    if launched:
        assert "ended before the others" in said and "no checkpoint yet" in said
        assert not (tmp_path / "lived").exists()
    else:
        assert not said
        assert "immunis-watch" not in (tmp_path / "lived").read_text()  # it ended with the run


def test_a_checkpoint_is_written_by_the_clock_too_and_resumes_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("immunis.training.checkpoint.EVERY", 0.0)
    primary, harmful = tasks()

    def run(folder, progress=silent):
        training = {"steps": 4, "evaluate": 1, "batch": 16, "harmful_batch": 24}
        return immunize(
            small_net(), primary, harmful, "probe",
            training=training, folder=folder, resume=True, progress=progress,
        )  # fmt: skip

    def stop(what, share):
        if share == 0.75:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", stop)
    assert checkpoints.read(tmp_path / "run" / checkpoints.NAME)["step"] == 2
    again, straight = run(tmp_path / "run"), run(tmp_path / "straight")
    assert tensors_digest(again.model.state_dict()) == tensors_digest(straight.model.state_dict())


@pytest.mark.parametrize(("before", "after"), [(2, 1), slow(1, 2), slow(2, 2)])
def test_a_dead_process_ends_the_run_and_any_number_of_them_resume_it(
    nursery, tmp_path, before, after
):
    straight, broken = (make_folder(tmp_path / name) for name in ("straight", "broken"))
    assert train(nursery, straight, 1) == [0]
    died = train(nursery, broken, before, die_at=5)
    assert died == [1, -signal.SIGKILL][2 - before :]
    if before == 2:
        said = (broken / "said-0").read_text()
        assert "ended before the others" in said and "--resume" in said
    assert checkpoints.read(broken / checkpoints.NAME)["step"] == 4
    assert train(nursery, broken, after, resume=True) == [0] * after
    one, two = (torch.load(place / "model0.pt", weights_only=True) for place in (straight, broken))
    assert [row["step"] for row in two[1]] == [row["step"] for row in one[1]]
    for key in one[0]:
        assert torch.allclose(one[0][key].float(), two[0][key].float(), atol=2e-5), key


@pytest.mark.slow
def test_processes_write_a_checkpoint_together_when_one_clock_says_so(nursery, tmp_path):
    straight, broken = (make_folder(tmp_path / name) for name in ("straight", "broken"))
    assert train(nursery, straight, 2) == [0, 0]
    assert train(nursery, broken, 2, die_at=4, late=True) == [1, -signal.SIGKILL]
    assert checkpoints.read(broken / checkpoints.NAME)["step"] == 3  # evaluated at 2 and 4
    assert train(nursery, broken, 2, resume=True) == [0, 0]
    one, two = (torch.load(place / "model0.pt", weights_only=True) for place in (straight, broken))
    assert one[1] == two[1]
    assert tensors_digest(one[0]) == tensors_digest(two[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        ["-m", "immunis"],
        pytest.param(
            ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "immunis"],
            marks=pytest.mark.skipif(KILLS <= 60, reason="make faults"),
        ),
    ],
    ids=["devices", "torchrun"],
)
def test_a_command_on_two_devices_ends_when_one_process_dies(tmp_path, start):
    faulty.write_recipes(tmp_path, 0)
    recipe = tmp_path / "network.toml"
    recipe.write_text(recipe.read_text().replace("steps = 5", "steps = 100000"))
    command = [
        *(sys.executable, *start, "immunize", str(recipe), "-o", str(tmp_path / "out")),
        *("--devices", "2", "--strategy", "ddp"),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    )
    try:
        deadline = time.monotonic() + LIMIT
        while not list((tmp_path / "out" / "training").glob("events.out.*")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        children = subprocess.run(
            ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
        )
        os.kill(int(children.stdout.split()[-1]), signal.SIGKILL)
        said, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "ended before the others" in " ".join(said.split()) or "SIGKILL" in said
    with hold(tmp_path / "out"):  # nobody is left who holds it
        pass
