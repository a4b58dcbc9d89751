import importlib.util
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from immunis import RankWarning, Task
from immunis.datasets import digits

if importlib.util.find_spec("hypothesis"):  # make test-extras goes without
    from hypothesis import settings

    settings.register_profile("fuzz", max_examples=3000)  # make fuzz
torch.set_num_threads(1)  # the suite runs one process per core
sys.path.insert(0, str(Path(__file__).parent))
EXTRAS = {
    "test_vision.py": ("timm", "torchvision", "peft"),
    "test_text.py": ("transformers",),
    "test_pages.py": ("timm",),
}
collect_ignore = [  # what is not installed; make test-extras has all of it
    f"extras/{file}"
    for file, names in EXTRAS.items()
    if not all(map(importlib.util.find_spec, names))
]


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


def make_task(n=60, d=5, classes=3, seed=0, name="toy", shift=0.0, scales=None):
    """A classification task whose classes differ in mean, full rank, unequal scales."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    centres = rng.normal(size=(classes, d))
    x = rng.normal(size=(n, d)) + centres[y] + shift
    x *= np.logspace(0, 1, d) if scales is None else scales
    cut = n * 3 // 4
    return Task((x[:cut], y[:cut]), (x[cut:], y[cut:]), name)


@pytest.fixture
def pair():
    """A primary and a harmful toy task on the same five features."""
    return make_task(80, seed=1, name="primary"), make_task(80, seed=2, name="harmful", shift=0.5)
