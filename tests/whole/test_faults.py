"""Faults: killed processes, full disks, closed and vanished folders, two writers, damaged files."""

import contextlib
import errno
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import RESULTS, faulty, kills
from helpers.kills import LIMIT, Nursery, state, train
from helpers.networks import small_net, tasks
from immunis import InputError, OutputError, Record, immunize
from immunis.core.files import SCRAP, make_folder
from immunis.core.hashing import tensors_digest
from immunis.core.jobs import Job, Run, silent, sweep
from immunis.core.locks import LOCK, hold
from immunis.core.releases import MARK, STAGE, SUMS, release
from immunis.data.sources import images
from immunis.models.weights import load_weights
from immunis.recipes import load_recipe
from immunis.recipes.pipeline import Pipeline
from immunis.report.export import weights
from immunis.training import checkpoint as checkpoints


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    return Nursery(tmp_path_factory.mktemp("faults"))


@pytest.mark.slow
@pytest.mark.parametrize("what", faulty.COMMANDS)
def test_killed_at_random_moments_it_resumes_to_the_same_result(nursery, what):
    found = kills.at_random(nursery, what, 15)
    assert found.kills >= 15 and found.resumed >= 3
    assert not (found.torn or found.hangs or found.differ), found


@pytest.mark.parametrize("what", ["linear", slow("network"), slow("audit"), slow("sweep")])
def test_killed_at_any_write_it_leaves_the_old_or_the_new_state(nursery, what):
    found = kills.at_writes(nursery, what, every=7)
    assert found.kills > 1 and found.resumed
    assert not (found.torn or found.hangs or found.differ), found


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


SEVERAL = """
import os, sys
from immunis.cli.main import main

for given in sys.argv[1:]:  # in one process, since each one imports torch anew
    sys.argv, code = ["immunis", *given.split()], 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    print("code", code, *sorted(os.listdir()), flush=True)
"""


def test_a_disk_with_nothing_free_is_said_at_once_and_leaves_no_trace(tmp_path):
    """Every command, on a real file system with 0 bytes free; nothing waits or tries for ever."""
    record = (RESULTS / "demo.json").read_bytes()
    (tmp_path / "record.json").write_bytes(record)
    (tmp_path / "m").mkdir()
    room = f"mount -t tmpfs -o size={len(record) + (64 << 10)} none m && cp record.json m && cd m"
    fill = "mkdir old && dd if=/dev/zero of=full bs=4096; df --output=avail . | tail -1 >&2"
    wanted = ("demo -o old", "demo -o a/b", "card record.json -o c.md")
    several = " ".join(map(shlex.quote, ["-c", SEVERAL, *wanted, "figures record.json -o old"]))
    tried = f"timeout -s KILL {LIMIT} {sys.executable} {several}"
    script = f"{room} && {{ {fill}; {tried}; }} 2>&1"
    unshared = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    done = subprocess.run(unshared, capture_output=True, text=True, cwd=tmp_path, check=False)
    if "code" not in done.stdout:
        pytest.skip(f"no file system of its own here: {done.stderr}")
    said = " ".join(done.stdout.split())
    assert re.search(r"\b0 error: cannot", said), said
    assert said.count("No space left on device. Free some space") == 3
    assert said.count("code 1 full old record.json") == 3 and "Traceback" not in said
    assert not list((tmp_path / "m").iterdir())


def test_no_space_at_any_call_ends_a_command_and_frees_its_folder(tmp_path, monkeypatch):
    """The same where no file system can be made: each call that writes fails in its turn."""
    calls = [(os, "fsync"), (os, "mkdir"), (tempfile, "mkstemp"), (tempfile, "TemporaryFile")]
    left = [0]

    def full(call):
        def wrapper(*arguments, **more):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments, **more)

        return wrapper

    for place, name in [*calls, (type(tmp_path), "write_text")]:
        monkeypatch.setattr(place, name, full(getattr(place, name)))
    for point in itertools.count():
        left[0] = point
        try:
            with hold(tmp_path / "out") as folder:
                release(folder, {"a.txt": "a", "b.txt": "b"})
            break
        except OutputError as error:
            said = str(error)
        assert "No space left on device. Free some space" in said
        found = {path.name for path in tmp_path.rglob("*")} - {"out", STAGE, MARK}
        assert found in (set(), {"a.txt", "b.txt", SUMS}), point  # whole once only a sync fails
    assert point > 8


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
            small_net(2), found.primary, found.harmful, "probe", weight=10.0,
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
    first = Pipeline(recipe, data, folder=tmp_path / "models").original()
    flip(next((tmp_path / "models").glob("*.safetensors")))
    with pytest.warns(UserWarning, match="checksum.*trained again"):
        again = Pipeline(recipe, data, folder=tmp_path / "models").original()
    assert tensors_digest(again.state_dict()) == tensors_digest(first.state_dict())


def left_of(pid):
    """What a process with workers has put into shared memory."""
    places = {Path("/dev/shm"), Path(tempfile.gettempdir())}
    names = f"sem.loky-{pid}-*", f"joblib_memmapping_folder_{pid}_*"
    return [path for place in places for name in names for path in place.glob(name)]


@pytest.mark.parametrize("all_killed", [False, True], ids=["parent", "all"])
def test_workers_end_with_a_killed_command_and_nothing_of_theirs_stays(tmp_path, all_killed):
    code = f"from helpers.napping import run_long_sweep; run_long_sweep({str(tmp_path / 'out')!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(faulty.__file__).parents[1], start_new_session=True
    )
    ours = ["pgrep", "-g", str(process.pid)]
    try:
        deadline = time.monotonic() + LIMIT
        while len(list(tmp_path.glob("napping-*"))) < 2:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL) if all_killed else process.kill()
        process.wait()
        deadline = time.monotonic() + LIMIT
        while subprocess.run(ours, capture_output=True, check=False).stdout:
            assert time.monotonic() < deadline, "workers outlive their command"
            time.sleep(0.1)
        assert bool(left_of(process.pid)) == all_killed  # the tracker cleans up, if it lives
        with hold(tmp_path / "out"):
            assert not left_of(process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


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
            small_net(), primary, harmful, "probe", weight=10.0,
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


@pytest.mark.parametrize(
    ("before", "after", "strategy"),
    [
        (2, 1, "ddp"), slow(1, 2, "ddp"), slow(2, 2, "ddp"),
        slow(2, 1, "fsdp"), slow(1, 2, "fsdp"), slow(2, 2, "fsdp"),
    ],
)  # fmt: skip
def test_a_dead_process_ends_the_run_and_any_number_of_them_resume_it(
    nursery, tmp_path, before, after, strategy
):
    kills.lose_process(nursery, tmp_path, before, after, strategy)
    if before == 2:
        said = (tmp_path / "broken" / "said-0").read_text()
        assert "ended before the others" in said and "--resume" in said


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
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "immunis"],
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
