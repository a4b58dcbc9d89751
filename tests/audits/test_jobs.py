"""The same record from any number of workers, and from a second run."""

import sys
import warnings

import pytest
from torch.utils.data import DataLoader, TensorDataset

from helpers.audits import run, timeless
from immunis import Effort, Task, audit


def test_identical_seeds_give_identical_records_whatever_the_number_of_workers(models, tasks):
    one, again, two = (run(models, tasks, seeds=2, workers=w) for w in (1, 1, 2))
    assert timeless(one) == timeless(again) == timeless(two)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster_gives_the_same_record(models, tasks):
    ray = pytest.importorskip("ray")
    try:
        assert timeless(run(models, tasks, cluster="local", workers=2)) == timeless(
            run(models, tasks)
        )
    finally:
        ray.shutdown()


def test_finished_attacks_are_not_repeated(models, tasks, tmp_path, monkeypatch):
    first = run(models, tasks, folder=tmp_path)
    count = len(list(tmp_path.glob("*.json")))
    monkeypatch.setattr(sys.modules["immunis.attacks.search"], "search", lambda *_: 1 / 0)
    assert timeless(run(models, tasks, folder=tmp_path)) == timeless(first)
    assert len(list(tmp_path.glob("*.json"))) == count


def test_an_interrupted_audit_goes_on_where_it_stopped(models, tasks, tmp_path, monkeypatch):
    module = sys.modules["immunis.attacks.search"]
    real, calls = module.search, []

    def stops(*arguments):
        calls.append(1)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, "search", stops)
    with pytest.raises(KeyboardInterrupt):
        run(models, tasks, folder=tmp_path)
    kept = len(list(tmp_path.glob("*.json")))
    assert kept == 4
    monkeypatch.setattr(module, "search", real)
    calls.clear()
    assert timeless(run(models, tasks, folder=tmp_path)) == timeless(run(models, tasks))


def test_odd_files_in_the_folder_are_run_again(models, tasks, tmp_path):
    first = run(models, tasks, ["ridge"], folder=tmp_path, seeds=1)
    for text, path in zip(
        ("null", "{}", "[]", '{"status": "done"}'), sorted(tmp_path.iterdir()), strict=False
    ):
        path.write_text(text)
    assert timeless(run(models, tasks, ["ridge"], folder=tmp_path, seeds=1)) == timeless(first)


def test_a_shuffling_loader_resumes_all_the_same(models, tasks, tmp_path):
    train, test = (TensorDataset(*s.tensors()) for s in (tasks.attacker.train, tasks.attacker.test))
    for _ in range(2):
        loader = DataLoader(train, batch_size=16, shuffle=True)
        task = Task(loader, DataLoader(test, batch_size=64), "attacker")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            audit(
                models,
                tasks.primary,
                task,
                attacks=["ridge"],
                effort=Effort(1, 5),
                run={"folder": tmp_path},
            )
        count = len(list(tmp_path.iterdir()))
    assert count == 4  # two models, the control, and the control from scratch
