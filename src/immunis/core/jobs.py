"""Many independent jobs: in parallel, over machines, resumable, with the same results either way.

A job is a function of picklable arguments that returns plain JSON values. Finished results are
kept in a folder, one file each, and a second run with the same folder skips them. No lock is
taken: run one sweep at a time in a folder (commands hold the folder above it).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from immunis.core.errors import InputError, SettingsError
from immunis.core.extras import need
from immunis.core.files import make_folder, sealed, unsealed, write_text
from immunis.core.records import plain
from immunis.core.settings import build, whole
from immunis.core.shape_check import special
from immunis.core.state import one_thread, quiet

Progress = Callable[[str, float], None]  # what was done, and the share of the whole in [0, 1]
POLL = 0.5  # seconds between two looks of a worker at its parent
_KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")


def silent(what: str, share: float) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Job:
    """A function, its arguments, and a label for progress: ``"kind: which"``."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    label: str = ""

    @property
    def kind(self) -> str:
        """The label up to its colon; jobs of a kind take about the same time."""
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
    run = build(Run, run, "run")
    for key in jobs:
        if not _KEY.fullmatch(key):
            raise SettingsError(
                f"job key {key!r} names a file: expected up to 100 letters, digits, - or _. Use "
                "key_of to make one."
            )
    store = None if run.folder is None else make_folder(run.folder)
    results = {} if store is None else _finished(store, jobs, lasting)
    todo = {key: job for key, job in jobs.items() if key not in results}
    if run.cluster is not None:
        found = _on_ray(run.cluster, todo)
    else:
        found = _parallel(run.workers, todo) if run.workers > 1 else map(_run, todo.items())
    with quiet(message="A worker stopped while some jobs were given"):  # one that grew by 300 MB
        for key, result in found:
            results[key] = result
            if store is not None and lasting(result):
                write_text(kept_at(store, key), sealed(plain({"key": key, "result": result})))
            run.progress(jobs[key].label, len(results) / len(jobs))
    return {key: results[key] for key in jobs}


def kept_at(folder: str | Path, key: str) -> Path:
    """Return where a folder keeps the result of a finished job."""
    return Path(folder) / f"{key}.json"


def _run(item: tuple[str, Job]) -> tuple[str, Any]:
    key, job = item
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
    """Return the lasting results of an earlier sweep; warn of damaged ones."""
    found = {}
    for key in jobs:
        path = kept_at(store, key)
        if not path.exists():
            continue
        try:
            values = unsealed(path, "finished job")
            if values.get("key") != key:
                raise InputError(f"{path} belongs to another job.")
        except InputError as error:
            warnings.warn(f"{error} The job runs again.", stacklevel=3)
            continue
        result = special(values.get("result"))
        if lasting(result):
            found[key] = result
    return found


def _parallel(workers: int, jobs: Mapping[str, Job]) -> Iterator[tuple[str, Any]]:
    """Run jobs in processes of this machine."""
    from joblib import Parallel, delayed

    start = {"initializer": _end_with, "initargs": (os.getpid(),)}
    pool = Parallel(workers, "loky", return_as="generator_unordered", batch_size=1, **start)
    yield from pool(delayed(_run)(item) for item in jobs.items())


def _end_with(parent: int) -> None:
    """End this worker when its parent dies, however that dies: joblib would let it wait for work.

    Its tracker then frees the semaphores and arrays that they shared.
    """

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(POLL)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def _on_ray(address: str, jobs: Mapping[str, Job]) -> Iterator[tuple[str, Any]]:
    """Run jobs on a Ray cluster, one core each, two in flight for each core.

    Plain tasks run again when their machine is lost, and each result arrives when it is done.
    ``ray.util.joblib`` has neither: it returns all results at the end.
    """
    ray = need("ray")
    if not ray.is_initialized():
        local = address == "local"
        ray.init(None if local else address, include_dashboard=False, log_to_driver=False)
    task, waiting = ray.remote(num_cpus=1)(_run), iter(jobs.items())
    most = 2 * int(ray.cluster_resources().get("CPU", 1))
    flying = [task.remote(item) for item in itertools.islice(waiting, most)]
    while flying:
        landed, flying = ray.wait(flying)
        flying += [task.remote(item) for item in itertools.islice(waiting, 1)]
        yield ray.get(landed[0])
