"""Table 2 again, on stand-ins for MNIST's digits."""

import dataclasses
import pickle
from collections import Counter

import numpy as np
import pytest

from immunis import InputError, SettingsError
from immunis.core.jobs import Job, Run
from immunis.paper import mnist, planned, reproduce


def test_both_protocols_have_rows_maps_and_counts(mnist_record):
    protocols = mnist_record.figures["protocols"]
    for name, protocol in protocols.items():
        assert set(protocol["pairs"]) == {"0 1", "1 0"}
        for method, maps in protocol["maps"].items():
            known = [v for line in maps["honest"] for v in line if v is not None]
            assert len(known) == 2, (name, method)
    rows = {row["name"]: row for row in protocols["paper"]["rows"]}
    assert rows["algorithm_1"]["runs"] == 4  # two pairs, two seeds
    assert rows["opt_kappa"]["runs"] == rows["frontier"]["runs"] == 2
    assert "constant" in rows["erase"]["reason"]
    assert rows["algorithm_1"]["successes"]["released"]["pairs"] == 2
    table = rows["algorithm_1_table"]
    assert (table["step"], table["epochs"], table["runs"]) == (0.001, 30, 2)
    assert table["published"] == rows["algorithm_1"]["published"] and table["verdict"] != "–"
    points = mnist_record.figures["path"]["points"]
    assert [point[3] for point in points if point[:2] == [0, 1]] == [1, 3, 5, 10, 20, 30]
    ends = [point[4] for point in points if point[3] == 30]
    assert table["released"]["rir"]["mean"] == pytest.approx(np.mean(ends), rel=1e-4)
    binary = {row["method"]: row for row in protocols["binary"]["rows"]}
    assert not any(row["published"] for row in binary.values())  # the paper has no such table
    assert binary["erase"]["attacks"]["gd_line_search"]["score"]["mean"] < 0.8
    assert protocols["binary"]["identity"]["ridge"]["score"]["mean"] > 0.9


@pytest.mark.filterwarnings("ignore:.*not the original")
def test_jobs_can_be_sent_to_other_processes(mnist_folder, small_mnist):
    jobs, _, _ = planned("mnist", mnist_folder, small_mnist)
    assert Counter(job.kind for job in jobs.values()) == {
        "paper": 4,
        "paper, closed form": 2,
        "binary": 2,
        "binary, closed form": 2,
        "30 epochs": 2,
        "Opt κ": 2,
    }
    packed = pickle.dumps(next(iter(jobs.values())))
    assert isinstance(pickle.loads(packed), Job) and len(packed) < 30e6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*not the original")
def test_workers_and_seeds_change_nothing_that_was_done(mnist_folder, small_mnist, tmp_path):
    small = dataclasses.replace(small_mnist, pairs=((0, 1),), plain_seeds=0, table_seeds=0, seeds=1)
    one = reproduce("mnist", mnist_folder, small, run=Run(folder=tmp_path))
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    more = dataclasses.replace(small, seeds=2)
    two = reproduce("mnist", mnist_folder, more, run=Run(2, folder=tmp_path))
    alone = reproduce("mnist", mnist_folder, more)
    assert kept.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}.items()
    binary = [record.figures["protocols"]["binary"]["rows"] for record in (one, two, alone)]
    assert binary[0] == binary[1] == binary[2]
    paper = [record.figures["protocols"]["paper"] for record in (two, alone)]
    assert paper[0] == paper[1]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"pairs": ((3, 3),)}, r"\[3\] are in both"),
        ({"pairs": ((1, 10),)}, "digits from 0 to 9"),
        ({"pairs": ()}, "at least one pair"),
        ({"seeds": 0}, "seeds=0"),
        ({"table_seeds": -1}, "table_seeds=-1"),
        ({"attack_rows": 3}, "attack_rows=3"),
    ],
)
def test_impossible_settings_are_refused(bad, says):
    with pytest.raises((InputError, SettingsError), match=says):
        mnist.Settings(**bad)
