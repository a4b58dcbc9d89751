import json
import operator
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch

from helpers import faulty
from immunis import InputError, SettingsError
from immunis.core.files import key_of
from immunis.core.jobs import Job, Run, sweep


def squares(count):
    return {key_of(i): Job(operator.pow, (i, 2), str(i)) for i in range(count)}


def test_sweeps_keep_order_and_results(tmp_path):
    seen = []
    kept = Run(folder=tmp_path, progress=lambda label, share: seen.append(share))
    found = sweep(squares(6), kept)
    assert list(found.values()) == [0, 1, 4, 9, 16, 25]
    assert seen == [pytest.approx((i + 1) / 6) for i in range(6)]
    assert found == sweep(squares(6), Run(workers=2))
    damaged = next(tmp_path.glob("*.json"))
    damaged.write_text("{")
    with pytest.warns(UserWarning, match="is not JSON"):
        assert sweep(squares(6), kept) == found


def test_a_worker_replaced_is_no_news(recwarn):
    told = "A worker stopped while some jobs were given to the executor. This can be caused by"
    sweep(squares(3), Run(2, progress=lambda label, share: warnings.warn(told, stacklevel=1)))
    assert not [str(one.message) for one in recwarn if told in str(one.message)]
    assert sweep({}, Run(workers=2)) == {}


def test_a_job_whose_result_is_not_json_is_named():
    with pytest.raises(InputError, match="job 'a': its result is not plain JSON"):
        sweep({"a": Job(torch.zeros, (1,))})


def test_a_cluster_without_ray_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"immunis\[cluster\]"):
        sweep(squares(1), {"cluster": "local"})


@pytest.mark.parametrize("bad", [{"worker": 2}, {"workers": "2"}, {"workers": 0}])
def test_a_run_that_cannot_be_is_refused(bad):
    with pytest.raises(SettingsError, match="worker"):
        sweep({}, bad)


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
