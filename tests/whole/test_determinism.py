"""Same seed, same record: byte for byte on one machine, within a tolerance across thread counts."""

import json
import os
import subprocess
import sys

import pytest

from helpers import ROOT

KINDS = (
    "measure", "immunize, closed form", "immunize, mini-batches", "immunize, network", "audit",
    "demo", "reproduce",
)  # fmt: skip
# Relative, and absolute for figures near zero. Sums in another order differ by rounding; κ
# multiplies that by up to κ (10⁶ for digits), descent by the number of its steps, and one test
# row of several hundred may change sides.
TOLERANCE = dict.fromkeys(KINDS, 1e-6) | {"immunize, network": 1e-3, "audit": 2e-2, "demo": 2e-2}


def in_a_process(threads, folder):
    done = subprocess.run(
        [sys.executable, "-m", "helpers.determinism", str(threads), str(folder)],
        cwd=ROOT / "tests",
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def single(house_folder):
    return in_a_process(1, house_folder)


def test_the_same_seed_gives_the_same_record_to_the_byte(single, house_folder):
    again = in_a_process(1, house_folder)
    assert tuple(single) == tuple(again) == KINDS
    for kind in KINDS:
        assert json.dumps(single[kind]) == json.dumps(again[kind]), kind


def differences(one, two, tolerance, where=""):
    """Places where two records differ by more than a tolerance."""
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        for key in one.keys() - {"weights"}:  # their hashes change with the last bit
            yield from differences(one[key], two[key], tolerance, f"{where}.{key}")
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        size = max((abs(v) for v in one if isinstance(v, float)), default=0.0)
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            near = isinstance(a, float) and isinstance(b, float) and abs(a - b) <= 1e-12 * size
            if not near:  # eigenvalues are known to rounding of the largest
                yield from differences(a, b, tolerance, f"{where}[{i}]")
    elif isinstance(one, float) and isinstance(two, float):
        if abs(one - two) > tolerance * max(1e-6, abs(one), abs(two)):
            yield where, one, two
    elif one != two:
        yield where, one, two


@pytest.mark.slow
def test_the_number_of_threads_changes_records_within_tolerance(single, house_folder):
    double = in_a_process(2, house_folder)
    for kind in KINDS:
        assert not list(differences(single[kind], double[kind], TOLERANCE[kind])), kind
