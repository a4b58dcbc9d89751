"""Large features lie on disk, and nothing of them stays."""

import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from immunis import OutputError
from immunis.core import disk_arrays
from immunis.core.disk_arrays import MEMORY, PLACE, Shelf, blocks

GROWTH = """
import sys, torch
from immunis.audits.describe import Reader
from immunis.core.disk_arrays import Shelf
from immunis.attacks.contract import Data, Samples
from immunis.models.find_cut import cut

def own():  # memory that no file backs, in MB
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("RssAnon")).split()[1]) / 1024

torch.set_num_threads(1)
x = torch.randn(20_000, 512).numpy()  # 41 MB
task = Samples("classification", 2, Data(x, (x[:, 0] > 0).astype(int)), Data(x[:50], x[:50, 0] > 0))
with Shelf(sys.argv[1]) as place:
    reader, found = Reader(torch.from_numpy(x[:2]), place), []
    for seed in range(8):
        theta = torch.randn(512, 512, generator=torch.Generator().manual_seed(seed))
        model = cut(theta, torch.from_numpy(x[:2]), None, None, "m")
        reader.read("m", model, task, "")
        found.append(own())
print(found[1], found[-1])
"""


def test_large_arrays_are_mapped_and_small_ones_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_arrays, "SMALL", 100)
    large, small = np.arange(64.0).reshape(8, 8), np.arange(4.0)
    with Shelf(tmp_path) as place:
        kept = place.put(large)
        assert isinstance(kept, np.memmap) and not kept.flags.writeable
        assert (kept == large).all() and place.put(small) is small
    assert not (tmp_path / PLACE).exists()


def test_blocks_join_to_what_they_were_and_rows_are_taken_in_their_order(tmp_path, monkeypatch):
    whole, rows = np.arange(600.0).reshape(100, 3, 2), np.array([7, 99, 0, 7])
    for small, size in ((1 << 20, 1 << 20), (100, 200)):
        monkeypatch.setattr(disk_arrays, "SMALL", small)
        monkeypatch.setattr(disk_arrays, "BLOCK", size)
        with Shelf(tmp_path) as place:
            kept = place.join(blocks(whole))
            assert isinstance(kept, np.memmap) == (small == 100)
            assert (kept == whole).all() and kept.dtype == whole.dtype
            assert (place.take(kept, rows) == whole[rows]).all()
            assert (MEMORY.take(kept, rows) == whole[rows]).all()
            before = place.size
            place.drop(kept)
            assert place.size == before - (whole.nbytes if small == 100 else 0)


def test_what_a_killed_run_left_is_removed(tmp_path):
    Shelf(tmp_path)  # killed: nothing has ended it
    (tmp_path / PLACE / "1.bin").write_bytes(b"left")
    (tmp_path / "features").mkdir()  # a user's own
    with Shelf(tmp_path):
        assert not (tmp_path / PLACE / "1.bin").exists()
    assert (tmp_path / "features").exists() and not (tmp_path / PLACE).exists()


def test_what_killed_runs_without_a_folder_left_is_removed_and_running_ones_keep_theirs(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(disk_arrays, "NEW", 0.0)
    (tmp_path / "immunis-own").mkdir()
    (tmp_path / "immunis-own" / "1.bin").write_text("mine")
    begin = "from immunis.core.disk_arrays import Shelf; import os; s = Shelf(); "
    code = begin + "os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert len(list(tmp_path.glob("immunis-*"))) == 2  # the killed run's, and a user's own
    code = begin + "print(s._place, flush=True); input()"
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **how) as running:
        place = running.stdout.readline().strip()
        with Shelf() as mine, Shelf() as other:
            left = {str(path) for path in tmp_path.glob("immunis-*")}
            assert left == {
                place,
                str(tmp_path / "immunis-own"),
                *map(str, (mine._place, other._place)),
            }
        running.communicate("\n")
    with Shelf():
        assert len(list(tmp_path.glob("immunis-*"))) == 2


def test_a_users_own_folder_of_that_name_stays(tmp_path):
    own = tmp_path / PLACE / "1.bin"
    own.parent.mkdir()
    own.write_text("mine")
    with pytest.raises(OutputError, match="was not written by immunis: move it"):
        Shelf(tmp_path)
    assert own.read_text() == "mine"


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_arrays, "SMALL", 0)

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(disk_arrays, "_write", full)
    with Shelf(tmp_path) as place, pytest.raises(OutputError, match="disk is full"):
        place.put(np.zeros(4))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
def test_memory_does_not_grow_with_the_number_of_models(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    two, eight = map(float, done.stdout.split())
    assert eight - two < 60, f"{eight - two:.0f} MB more for six copies of 41 MB"


LARGE = """
import sys, threading, time, torch
from torch import nn
from immunis import Task, audit
from immunis.attacks import arrays
from immunis.audits import describe
from immunis.core import disk_arrays
from immunis.data import split

split.NUMBERS = arrays.NUMBERS = describe.NUMBERS = 1 << 20  # small blocks
disk_arrays.BLOCK = 1 << 22

def own():  # memory that no file backs, in MB
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("RssAnon")).split()[1]) / 1024

class Pictures(torch.utils.data.Dataset):
    def __init__(self, count, classes, seed):
        self.count, self.classes, self.seed = count, classes, seed
    def __len__(self):
        return self.count
    def __getitem__(self, row):
        noise = torch.Generator().manual_seed(1000 * self.seed + row)
        return torch.randn(3, 128, 128, generator=noise) + row % self.classes, row % self.classes

torch.set_num_threads(1)
torch.manual_seed(0)
stem = nn.Sequential(nn.Conv2d(3, 4, 16, 16), nn.BatchNorm2d(4), nn.ReLU())
model = nn.Sequential(stem, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)).eval()
count = int(sys.argv[1])
primary = Task(Pictures(count, 3, 1), Pictures(count // 4, 3, 2), "primary")
attacker = Task(Pictures(count, 2, 3), Pictures(count // 4, 2, 4), "attacker")
ATTACKS = ["ridge", "attention_pool", "renormalise", "primary_first", "adapt", "finetune_all"]
samples, done = [], threading.Event()
def watch():
    while not done.is_set():
        samples.append(own())
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
space = {"optimizer": ["sgd"], "probe": ["ridge"], "augment": [False]}
effort = {"seeds": 1, "budget": 2, "space": space}
where = {"folder": sys.argv[2]}
rows = audit({"original": model}, primary, attacker, attacks=ATTACKS, effort=effort, run=where)
done.set()
attacks = rows.record.figures["attacks"]
assert all(attacks[name]["original"]["status"] == "done" for name in ATTACKS), attacks
print(max(samples))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
def test_an_audit_holds_no_set_of_inputs_in_memory(tmp_path):
    """Twice 1.25 × 750 images of 0.2 MB are 370 MB more than those of 250."""
    peaks = []
    for count in (250, 1000):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", LARGE, str(count), str(tmp_path / str(count))],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        peaks.append(float(done.stdout))
    assert peaks[1] - peaks[0] < 60, peaks
