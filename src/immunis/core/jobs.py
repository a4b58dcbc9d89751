"""Many independent jobs: in parallel, over machines, resumable, the same results either way.

A job is a function of picklable arguments that returns plain JSON values. Finished results
are kept, one file each, in a folder; a second run with the same folder repeats none of them.
No lock is taken: one sweep at a time in a folder (commands hold the folder above it).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from immunis.core.errors import InputError, SettingsError
from immunis.core.files import make_folder, sealed, unsealed, write_text
from immunis.core.records import plain, special
from immunis.core.settings import whole

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


def key_of(*parts: Any) -> str:
    """A stable name for a result: the hash of everything that decides it."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def sweep(
    jobs: Mapping[str, Job],
    *,
    folder: str | Path | None = None,
    workers: int = 1,
    cluster: str | None = None,
    progress: Callable[[str, float], None] = lambda label, share: None,
    lasting: Callable[[Any], bool] = lambda result: True,
) -> dict[str, Any]:
    """Run every job and return results by key, in the order of ``jobs``.

    Args:
        jobs: by key, a plain word (``key_of`` makes one); equal keys mean equal results.
        folder: where finished results are kept and looked for; nowhere if left out.
        workers: processes on this machine; 1 runs in this one.
        cluster: address of a Ray cluster (``ray://host:port``, or ``local`` for one started
            here) instead; needs the extra ``cluster``.
        progress: called after each job with its label and the share of jobs done.
        lasting: which results to keep in the folder; the others are tried again next time.

    Every job runs on one thread, so that results do not depend on ``workers``.
    """
    workers = whole(workers, "workers", 1)
    for key in jobs:
        if not _KEY.fullmatch(key):
            raise SettingsError(
                f"job key {key!r}: expected up to 100 letters, digits, - or _, since it names a "
                "file; key_of makes one of anything."
            )
    store = None if folder is None else make_folder(folder)
    results = {} if store is None else _finished(store, jobs, lasting)
    todo = [key for key in jobs if key not in results]

    def keep(key: str, result: Any) -> None:
        results[key] = result
        if store is not None and lasting(result):
            write_text(store / f"{key}.json", sealed(plain({"key": key, "result": result})))
        progress(jobs[key].label, len(results) / len(jobs))

    if workers == 1 and cluster is None:
        for key in todo:
            keep(*_run(key, jobs[key]))
    elif cluster is not None:
        for key, result in _over_ray(cluster, {key: jobs[key] for key in todo}):
            keep(key, result)
    else:
        with warnings.catch_warnings():  # a worker that grew by 300 MB, as networks do, is replaced
            warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
            for key, result in _over_processes(workers, {key: jobs[key] for key in todo}):
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
