"""Small runs of everything that makes a record, for comparing records with each other.

``python -m helpers.determinism THREADS FOLDER`` prints them as JSON, in a process of its own, since
the number of threads belongs to the whole process.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch

from helpers.networks import small_net, tasks
from immunis import Record, Task, audit, immunize, measure
from immunis.data.sources import digits
from immunis.paper import house_prices, reproduce
from immunis.recipes import demo
from immunis.training.settings import Training

TIMES = ("seconds", "created", "training_seconds")


def timeless(value: object) -> object:
    """A record's JSON without what says when it was made and how long that took."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def records(folder: Path) -> dict[str, Record]:
    """One small record of each kind; ``folder`` holds a table of house prices."""
    primary, harmful, *_ = digits()
    flat, attacked = (Task(t.train.tensors(), t.test.tensors(), t.name) for t in (primary, harmful))
    eye = torch.eye(64)
    erased = immunize(eye, primary, harmful, "erase")
    with_batches = immunize(eye, primary, harmful, "condition", batch_size=256, steps=2, seed=1)
    network = immunize(
        small_net(),
        *tasks(),
        "probe",
        weight=10.0,
        training=Training(steps=4, batch=48, harmful_batch=96),
    )
    chosen = {"erase": ("erase", {}), "imma": ("imma", {"steps": 5})}
    kept, demo.RUNS = demo.RUNS, chosen
    try:
        shown = demo.demo()
    finally:
        demo.RUNS = kept
    quick = house_prices.Settings(seeds=1, epochs=(1,), budget=5, curve=5)
    return {
        "measure": measure(primary, harmful).record,
        "immunize, closed form": erased.record,
        "immunize, mini-batches": with_batches.record,
        "immunize, network": network.record,
        "audit": audit(
            {"original": eye, "erase": erased}, flat, attacked, effort={"seeds": 1, "budget": 20},
            attacks=["ridge", "sgd", "mlp", "knn"],
        ).record,
        "demo": shown,
        "reproduce": reproduce("house-prices", folder, quick),
    }  # fmt: skip


def made(folder: Path) -> dict[str, object]:
    """The records as JSON without their times."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: timeless(record.to_dict()) for name, record in records(folder).items()}


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps(made(Path(sys.argv[2]))))
