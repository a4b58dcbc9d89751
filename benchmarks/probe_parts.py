"""What each part of the default defence adds, and how many harmful rows it needs.

python benchmarks/probe_parts.py [record.json] [--data FOLDER]

A convolutional network of four stages knows 20 classes of Tiny-ImageNet at 16x16 pixels. It is
defended against 20 classes of flowers, cars, birds and pets, with one part of ``probe`` changed at
a time and the weight of ρ fixed. Attackers with other images read every depth. Then the defender
has fewer flowers, or other species than the attacker. Three pre-trainings of each. Hours on a CPU:
``--job PAIR`` runs one part of it, and all that is finished in ``--folder`` is kept.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn

from common import arguments, save
from immunis import Task, immunize
from immunis.attacks.arrays import Samples
from immunis.attacks.contract import Arena
from immunis.attacks.search import run_attack
from immunis.core.files import key_of
from immunis.core.jobs import Job, Run, sweep
from immunis.core.records import __version__
from immunis.data.sources.image_folders import images
from immunis.data.task import Tasks
from immunis.methods import probe
from immunis.models.find_cut import cut
from immunis.models.positions import MAPS
from immunis.models.zoo import small_cnn, untrained
from immunis.theory.feature_maps import narrowed
from immunis.theory.scores import answers, score
from immunis.training.loop import fit
from immunis.training.objective import supervised_only
from immunis.training.selection import WIDEST, crossed
from immunis.training.settings import training_of

SIZE, CLASSES, SEEDS, WIDTHS = 16, 20, 3, (16, 32, 64, 64)
SETS = {
    "flowers": "flowers102_64",
    "cars": "stanford_cars_112",
    "birds": "cub200_112",
    "pets": "oxford_pets_112",
}
PRETRAIN = {
    "layers": ["*"],
    "epochs": 40,
    "optimizer": "sgd",
    "rate": 0.2,
    "weight_decay": 5e-4,
    "batchnorm": "update",
    "augment": True,
    "evaluate": 2,
}
TRAINING = {"steps": 300, "augment": True}
WEIGHT = 3.0
TUNED = "flowers", "cars"  # pairs whose networks are fine-tuned, of the parts named
AS_IT_IS, PLAIN, FRESH = "as it is", "the same training without ρ", "start fresh"
TUNED_PARTS = "original", "untrained", AS_IT_IS, PLAIN, "start noised", FRESH
BUDGET = 120  # optimizer steps of fine-tuning; its search takes six times as many


class Sample(NamedTuple):
    """Harmful data: its set, the classes of the defender and of the attacker, and the rows."""

    harmful: str
    defender: tuple[int, int]
    attacker: tuple[int, int]
    rows: int | None = None


Change = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
PARTS: dict[str, Change] = {  # constants of the method, its settings, training
    AS_IT_IS: ({}, {}, {}),
    PLAIN: ({}, {"weight": 0.0}, {}),
    "without the original's answers": ({"ANSWERS": 0.0}, {}, {}),
    "without the primary labels": ({"LABELS": 0.0}, {}, {}),
    "last features alone": ({"depths": lambda cut, most: ("",)}, {}, {}),
    "means of maps, no grid": ({"GRID": ""}, {}, {}),
    "no random combinations": ({"narrowed": lambda features, *_: features}, {}, {}),
    "statistics of each task": ({}, {}, {"batchnorm": "update"}),
    "half the steps": ({}, {}, {"steps": 150}),
    "start noised": ({}, {"start": "noised"}, {}),
    FRESH: ({}, {"start": "fresh"}, {}),
}
ROWS = (100, 300, 1000, None)  # harmful rows of the defender; None for all


def options() -> argparse.Namespace:
    """Return where data and finished runs are, and what to run."""
    parser = arguments(__doc__)
    parser.add_argument("--data")
    parser.add_argument("--folder", help="keeps finished runs")
    parser.add_argument("--job", help="what to run: a pair, or rows; by default all")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    return parser.parse_args()


def of_classes(task: Task, classes: range, rows: int | None = None) -> Task:
    """Return the rows of some classes, labelled from 0; at most ``rows`` of training, by class."""

    def part(split: Any, rows: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = split.tensors()
        kept = (labels >= classes.start) & (labels < classes.stop)
        inputs, labels = inputs[kept], labels[kept] - classes.start
        if rows is not None:
            turn = torch.zeros(len(labels))
            for label in labels.unique():
                turn[labels == label] = torch.arange(int((labels == label).sum())).float()
            first = torch.argsort(turn, stable=True)[:rows]
            inputs, labels = inputs[first], labels[first]
        return inputs, labels

    assert task.test is not None
    return Task(part(task.train, rows), part(task.test), task.name, classes=len(classes))


def read(model: nn.Module, primary: Task, attacker: Task, tune: bool) -> dict[str, Any]:
    """Return the primary score, and what ridge probes read at every depth of the attacker's rows.

    Probes are cross-validated over all rows; ``pooled`` has means over positions, ``maps`` random
    combinations of all positions. ``tuned`` is the test score of fine-tuning everything.
    """
    parts = [attacker.train.tensors(), attacker.test.tensors()]  # type: ignore[union-attr]
    inputs, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    whole = cut(model, inputs[:2], primary.outputs)
    found: dict[str, Any] = {"primary": score(*answers(model, primary), primary.kind)}
    for what, mark in (("pooled", ""), ("maps", MAPS)):
        found[what] = []
        for stage in whole.stages:
            with torch.no_grad():
                draw = torch.Generator().manual_seed(0)
                features = narrowed(whole.features(inputs, stage + mark), WIDEST, draw)
            found[what].append(crossed((features, labels), attacker.kind, attacker.outputs))
    if tune:
        samples = Samples.of(attacker)
        result = run_attack("finetune_all", Arena(whole, **vars(samples), budget=BUDGET))
        found["tuned"] = max(result["curve"], key=lambda point: point["validation"])["test"]
    return found


@cache
def loaded(harmful: str, folder: str | None) -> Tasks:
    """Return the tasks of a pair at the size of these networks."""
    return images("tiny_imagenet_100", SETS[harmful], size=SIZE, cache=True, folder=folder)


@cache
def original(folder: str | None, seed: int) -> tuple[Task, nn.Module]:
    """Return the primary task, and a network trained on it."""
    primary = of_classes(loaded("flowers", folder).primary, range(CLASSES))
    whole = cut(small_cnn(primary, WIDTHS, seed), primary.train.first(2), primary.outputs)
    training = training_of(PRETRAIN)
    return primary, fit(whole, supervised_only(), primary, None, training, seed=seed).model


def run_once(part: str, given: Sample, seed: int, folder: str | None) -> dict[str, Any]:
    """Defend one network and read it; ``original`` and ``untrained`` are read as they are."""
    warnings.simplefilter("ignore")  # what they say is measured here
    tasks, (primary, model) = loaded(given.harmful, folder), original(folder, seed)
    constants, settings, training = PARTS.get(part, ({}, {}, {}))
    if part == "untrained":
        whole = cut(model, primary.train.first(2), primary.outputs)
        model = untrained(whole, seed).model
    elif part != "original":
        harmful = of_classes(tasks.harmful, range(*given.defender), given.rows)
        with patch.dict(vars(probe), constants):
            model = immunize(
                model,
                primary,
                harmful,
                training={**TRAINING, **training},
                seed=seed,
                progress=False,
                **{"weight": WEIGHT, **settings},
            ).model
    tune = given.harmful in TUNED and given.attacker == (0, CLASSES) and part in TUNED_PARTS
    return read(model, primary, of_classes(tasks.attacker, range(*given.attacker)), tune)


def plan(seeds: int) -> dict[str, dict[str, tuple[str, Sample]]]:
    """Return what is run, by group and name."""
    found = {}
    for name in SETS:
        sample = Sample(name, (0, CLASSES), (0, CLASSES))
        found[name] = {part: (part, sample) for part in ("original", "untrained", *PARTS)}
    every, seen, others = (0, 102), (0, 51), (51, 102)
    rows = {f"{n or 'all'} rows": (AS_IT_IS, Sample("flowers", every, every, n)) for n in ROWS}
    rows |= {
        "original": ("original", Sample("flowers", every, every)),
        "untrained": ("untrained", Sample("flowers", every, every)),
        "other species, original": ("original", Sample("flowers", seen, others)),
        "other species, untrained": ("untrained", Sample("flowers", seen, others)),
        "other species": (AS_IT_IS, Sample("flowers", seen, others)),
        "the same species": (AS_IT_IS, Sample("flowers", others, others)),
    }
    return {**found, "rows": rows}


def main() -> None:
    """Run, print, and save a record if a path is given."""
    given = options()
    work = {g: rows for g, rows in plan(given.seeds).items() if given.job in (None, g)}
    jobs, keys = dict[str, Job](), dict[tuple[str, str, int], str]()
    for seed, (group, rows) in itertools.product(range(given.seeds), work.items()):
        for name, (part, sample) in rows.items():
            key = keys[group, name, seed] = key_of(part, sample, seed, __version__)[:24]
            jobs[key] = Job(run_once, (part, sample, seed, given.data), f"{group}: {name}, {seed}")
    results = sweep(jobs, Run(given.workers, folder=given.folder, progress=told))
    figures: dict[str, Any] = {}
    for (group, name, _), key in keys.items():
        figures.setdefault(group, {}).setdefault(name, []).append(results[key])
    for group, rows in figures.items():
        print(f"\n{group}: primary; ridge at every depth, pooled and of all positions; tuned")
        for name, runs in rows.items():
            columns = [[r["primary"], *r["pooled"], *r["maps"], r.get("tuned", 0.0)] for r in runs]
            means = [100 * statistics.fmean(column) for column in zip(*columns, strict=True)]
            print(f"{name:34s}" + "".join(f"{mean:7.1f}" for mean in means))
    save(given.record, "parts of probe", figures, training=TRAINING, weight=WEIGHT, size=SIZE)


def told(what: str, share: float) -> None:
    """Print how far it is."""
    print(f"{share:6.1%}  {what}", flush=True)


if __name__ == "__main__":
    main()
