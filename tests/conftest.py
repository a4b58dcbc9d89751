import csv
import gzip
import importlib.util
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

# The suite runs one process per core. This holds for BLAS and for subprocesses too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

from helpers.tasks import make_task
from immunis import RankWarning, Record
from immunis.cli import console
from immunis.cli import main as cli
from immunis.core.records import source_commit
from immunis.data.sources import digits

if importlib.util.find_spec("hypothesis"):  # make test-extras goes without
    from hypothesis import settings

    settings.register_profile("fuzz", max_examples=3300)  # make fuzz
torch.set_num_threads(1)  # the suite runs one process per core
EXTRAS = {
    "test_vision.py": ("timm", "torchvision", "peft"),
    "test_text.py": ("transformers",),
    "test_pages.py": ("timm",),
}
collect_ignore = ["helpers"]
collect_ignore += [  # what is not installed; make test-extras has all of it
    f"extras/{file}"
    for file, names in EXTRAS.items()
    if not all(map(importlib.util.find_spec, names))
]


def pytest_terminal_summary(terminalreporter, config):
    """Write the record of ``make fuzz``: by check, how many cases were right, refused or wrong.

    A run of some checks alone (``-k``), or one that is cut short, adds their rows to the record.
    """
    if config.getoption("--hypothesis-profile", None) != "fuzz" or hasattr(config, "workerinput"):
        return
    reports = (r for of in terminalreporter.stats.values() for r in of if hasattr(r, "when"))
    told = [pair for r in reports if r.when == "call" for pair in r.user_properties]
    if told:
        path = Path(__file__).parents[1] / "results" / "fuzz.json"
        old = Record.load(path) if path.exists() else None
        checks = dict(sorted({**(old.figures["checks"] if old else {}), **dict(told)}.items()))
        commits = {**(old.settings if old else {}), **{name: source_commit() for name, _ in told}}
        print("written:", Record("fuzz", "numeric cases", {"checks": checks}, commits).save(path))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def quiet_rank():
    """Silence RankWarning in tests that are not about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        yield


@pytest.fixture(scope="session")
def digit_tasks():
    return digits()


@pytest.fixture
def data_folder():
    """Folder of the real data sets; skips where there is none."""
    folder = os.environ.get("IMMUNIS_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("real data sets not found: set IMMUNIS_DATA to their folder")
    return Path(folder)


@pytest.fixture
def pair():
    """A primary and a harmful toy task on the same five features."""
    return make_task(80, seed=1, name="primary"), make_task(80, seed=2, name="harmful", shift=0.5)


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in a fresh folder, in this process."""

    def call(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["immunis", *map(str, arguments)])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        for terminal in (console.out, console.err):
            monkeypatch.setattr(terminal, "_width", 200)
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def house_folder(tmp_path_factory):
    """A table of the same shape as Kaggle's, made up."""
    rng = np.random.default_rng(0)
    n = 900
    columns = {"Id": np.arange(n), "MSZoning": np.where(np.arange(n) % 3, "RL", "RM")}
    base = rng.normal(size=(n, 12))
    for i in range(77):
        mixed = base @ rng.normal(size=12) + 0.3 * rng.normal(size=n)
        columns[f"C{i}"] = np.where(rng.random(n) < 0.02, "NA", np.round(mixed, 3).astype(str))
    columns["Kind"] = rng.choice(["a", "b", "None"], n)
    del columns["C76"]
    columns["LotArea"] = np.round(1e4 + 1e3 * base[:, 0]).astype(int)
    columns["SalePrice"] = np.round(2e5 + 1e4 * base[:, 1] + 1e3 * rng.normal(size=n)).astype(int)
    folder = tmp_path_factory.mktemp("data") / "house_prices"
    folder.mkdir()
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
    return folder.parent


@pytest.fixture(scope="session")
def mnist_folder(tmp_path_factory):
    """Idx files of ten made-up digits that live on a few pixels; a quarter of MNIST's size."""
    rng = np.random.default_rng(1)
    folder = tmp_path_factory.mktemp("data") / "mnist"
    folder.mkdir()
    shapes = rng.random((10, 7, 7))
    for part, count in (("train", 2400), ("t10k", 600)):
        labels = np.arange(count) % 10
        images = np.zeros((count, 14, 14), np.uint8)
        blurred = shapes[labels] + 0.4 * rng.random((count, 7, 7))
        images[:, 3:10, 3:10] = np.clip(150 * blurred, 0, 255)
        for name, array in ((f"{part}-images-idx3", images), (f"{part}-labels-idx1", labels)):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            packed = gzip.compress(head + array.astype(np.uint8).tobytes(), 1)
            (folder / f"{name}-ubyte.gz").write_bytes(packed)
    return folder.parent


@pytest.fixture
def no_hang():
    """Fail a test that takes half a minute, such as one that waits for a pipe."""

    def late(*_):
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
