"""Many independent jobs: in parallel, over machines, resumable, the same results either way.

A job is a function of picklable arguments that returns plain JSON values. Finished results
are kept, one file each, in a folder; a second run with the same folder repeats none of them.
No lock is taken: one sweep at a time in a folder (commands hold the folder above it).
"""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch

from immunis.core.errors import InputError, SettingsError
from immunis.core.files import make_folder, sealed, unsealed, write_text
from immunis.core.progress import Progress, silent
from immunis.core.records import plain, special
from immunis.core.settings import check, whole

_KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True)
class Job:
    """A function, its arguments, and a label for progress: ``"kind: which"``."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    label: str = ""

    @property
    def kind(self) -> str:
        """The label up to its colon; jobs of a kind take about as long as each other."""
        return self.label.partition(":")[0]


@dataclass(frozen=True)
class Run:
    """Where jobs run, and how many at a time.

    Attributes:
        workers: processes on this machine; 1 runs every job in this process.
        cluster: address of a Ray cluster (``ray://host:port``), or ``local`` to start one
            here. It replaces ``workers`` and needs the extra ``cluster``.
        folder: keeps finished results, so that a second run skips them; None keeps nothing.
        device: where models run, for jobs that use a model.
        progress: called after each job with its label and the share of jobs done.
    """

    workers: int = 1
    cluster: str | None = None
    folder: str | Path | None = None
    device: str = "cpu"
    progress: Progress = silent

    def __post_init__(self) -> None:
        """Check the number of workers."""
        object.__setattr__(self, "workers", whole(self.workers, "workers", 1))

    @classmethod
    def of(cls, given: Run | Mapping[str, Any]) -> Run:
        """Return a run as it is, or make one of a mapping after checking its keys and types."""
        if isinstance(given, Run):
            return given
        check(given, get_type_hints(cls), "run")
        return cls(**given)


HERE = Run()  # in this process, one job after the other


def sweep(
    jobs: Mapping[str, Job],
    run: Run | Mapping[str, Any] = HERE,
    *,
    lasting: Callable[[Any], bool] = lambda result: True,
) -> dict[str, Any]:
    """Run every job and return results by key, in the order of ``jobs``.

    Every job runs on one thread, so that results do not depend on ``run.workers``.

    Args:
        jobs: by key, a plain word (``key_of`` makes one); equal keys mean equal results.
        run: where jobs run; a mapping of its attributes will do.
        lasting: which results to keep in the folder; the others are run again next time.
    """
    run = Run.of(run)
    for key in jobs:
        if not _KEY.fullmatch(key):
            raise SettingsError(
                f"job key {key!r}: expected up to 100 letters, digits, - or _, since it names a "
                "file; key_of makes one of anything."
            )
    store = None if run.folder is None else make_folder(run.folder)
    results = {} if store is None else _finished(store, jobs, lasting)
    todo = [key for key in jobs if key not in results]

    def keep(key: str, result: Any) -> None:
        results[key] = result
        if store is not None and lasting(result):
            write_text(store / f"{key}.json", sealed(plain({"key": key, "result": result})))
        run.progress(jobs[key].label, len(results) / len(jobs))

    if run.workers == 1 and run.cluster is None:
        for key in todo:
            keep(*_run(key, jobs[key]))
    elif run.cluster is not None:
        for key, result in _over_ray(run.cluster, {key: jobs[key] for key in todo}):
            keep(key, result)
    else:
        with warnings.catch_warnings():  # a worker that grew by 300 MB, as networks do, is replaced
            warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
            for key, result in _over_processes(run.workers, {key: jobs[key] for key in todo}):
                keep(key, result)
    return {key: results[key] for key in jobs}


@contextmanager
def one_thread() -> Iterator[None]:
    """Run on one thread: small matrices gain nothing from more, and results depend on none."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _run(key: str, job: Job) -> tuple[str, Any]:
    with one_thread():
        result = job.call(*job.arguments)
    try:  # through JSON and back, so that a fresh result equals one read from its file
        return key, special(json.loads(json.dumps(result)))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"job {job.label or key!r}: its result is not plain JSON ({error}); return numbers, "
            "text, lists and dicts."
        ) from error


def _finished(
    store: Path, jobs: Mapping[str, Job], lasting: Callable[[Any], bool]
) -> dict[str, Any]:
    """Results kept earlier; what is damaged (which is said) or not lasting is run again."""
    found = {}
    for key in jobs:
        path = store / f"{key}.json"
        if path.exists():
            try:
                values = unsealed(path, "finished job")
            except InputError as error:
                warnings.warn(f"{error} It is run again.", stacklevel=3)
                continue
            result = special(values.get("result"))
            if values.get("key") != key:
                warnings.warn(f"{path} is of another job. It is run again.", stacklevel=3)
            elif lasting(result):
                found[key] = result
    return found


def _over_processes(workers: int, jobs: Mapping[str, Job]) -> Iterator[tuple[str, Any]]:
    """Run jobs in processes of this machine."""
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
    yield from pool(delayed(_run)(key, job) for key, job in jobs.items())


def _over_ray(address: str, jobs: Mapping[str, Job]) -> Iterator[tuple[str, Any]]:
    """Run jobs on a Ray cluster, one core each, a few more in flight than there are cores."""
    try:
        import ray
    except ImportError as error:
        raise SettingsError("a cluster needs the extra: pip install immunis[cluster]") from error
    if not ray.is_initialized():
        local = address == "local"
        ray.init(None if local else address, include_dashboard=False, log_to_driver=False)
    remote = ray.remote(num_cpus=1)(_run)
    flying: list[Any] = []
    room = 2 * int(ray.cluster_resources().get("CPU", 1))
    waiting = iter(jobs.items())
    while True:
        for key, job in itertools.islice(waiting, room - len(flying)):
            flying.append(remote.remote(key, job))
        if not flying:
            return
        landed, flying = ray.wait(flying)
        yield ray.get(landed[0])
