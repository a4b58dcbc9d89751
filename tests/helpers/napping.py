"""A sweep whose workers sleep. It imports little, since each worker imports it anew."""

import os
import time
from pathlib import Path

import numpy as np

from immunis.core.files import key_of
from immunis.core.jobs import Job, Run, sweep
from immunis.core.locks import hold


def nap(values, seconds, folder):
    """Say in a folder that this process has the values, and sleep."""
    (folder / f"napping-{os.getpid()}").touch()
    time.sleep(seconds)
    return len(values)


def run_long_sweep(folder):
    """Hold a folder and keep two workers busy for an hour, with an array that they share."""
    told = Path(folder).parent
    jobs = {key_of(n): Job(nap, (np.full(1 << 18, n), 3600, told)) for n in range(4)}
    with hold(folder):
        sweep(jobs, Run(workers=2, folder=Path(folder) / "jobs"))
