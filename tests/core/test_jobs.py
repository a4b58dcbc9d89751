import operator
import sys
import warnings

import pytest
import torch

from immunis import InputError, SettingsError
from immunis.core.hashing import key_of
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
