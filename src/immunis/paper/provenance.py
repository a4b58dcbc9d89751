"""What made a run: code, torch and device, kept beside its result.

A sweep may take days, several machines and a change of code between. The commit in a record is
that of its collection, so a record lists under ``made_by`` what computed its runs.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

import immunis
from immunis.core.jobs import Job
from immunis.core.records import source_commit

Made = Mapping[str, Any]  # a result with its makers


def signed(job: Job, device: str) -> Job:
    """Return a job that keeps its result as ``found``, with its maker and seconds as ``made``."""
    return Job(_made, (job.call, job.arguments, device), job.label)


def _made(call: Callable[..., Any], arguments: tuple[Any, ...], device: str) -> dict[str, Any]:
    began, named = time.perf_counter(), device
    found = call(*arguments)
    if torch.device(device).type == "cuda":
        named = torch.cuda.get_device_name(device)
    made = {"commit": _commit(), "code": code_digest(), "torch": torch.__version__, "device": named}
    return {"found": found, "made": {**made, "seconds": time.perf_counter() - began}}


def makers(results: Iterable[Made]) -> list[dict[str, Any]]:
    """Return each maker once, with its number of jobs and their seconds."""
    total: dict[tuple[Any, ...], list[float]] = {}
    for result in results:
        *made, seconds = result["made"].items()
        total.setdefault(tuple(made), []).append(seconds[1])
    return [
        {**dict(made), "jobs": len(seconds), "seconds": sum(seconds)}
        for made, seconds in total.items()
    ]


@cache
def code_digest() -> str:
    """Return the hash of the package's source files: runs of other code are not gone on with."""
    total, folder = hashlib.sha256(), Path(immunis.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        total.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return total.hexdigest()[:16]


@cache
def _commit() -> str | None:
    return source_commit()
