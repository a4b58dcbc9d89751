"""Table 1 and the norm-ratio figure: linear regression on House Prices, five seeds."""

from __future__ import annotations

import dataclasses
import hashlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from immunis.attacks.contract import Samples
from immunis.audits.feature_cache import chance_of, samples_of
from immunis.core.errors import NumericalError, SettingsError
from immunis.core.hashing import key_of
from immunis.core.jobs import Job, Run, sweep
from immunis.core.records import Record
from immunis.core.thinning import log_steps
from immunis.core.version import __version__
from immunis.data.sources.common import Tasks
from immunis.data.sources.house_prices import SHA256, find_or_fetch, released_split
from immunis.methods import LinearProblem
from immunis.paper import loop
from immunis.paper.attackers import ORIGINAL, attack, paid
from immunis.paper.judgement import compare, published
from immunis.paper.measures import Pair, norm_ratios
from immunis.paper.methods import CLOSED, ROWS, Found, Setting
from immunis.theory.gram import gram
from immunis.theory.measure import data_figures

NAME = "house-prices"
PATH = (1, 2, 5, 10, 20, 50, 100, 150, 200, 300, 500, 700)
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Settings:
    """How much to run.

    Attributes:
        seeds: repeats of every method that draws random numbers.
        epochs: the paper's text says 100, its table 1000, the released configuration 10.
        budget: steps the attackers may take.
        curve: steps of the norm-ratio curves.
    """

    seeds: int = 5
    epochs: tuple[int, ...] = (10, 100, 1000)
    budget: int = 1000
    curve: int = 1000

    def __post_init__(self) -> None:
        """Check the ranges."""
        rising = all(a < b for a, b in zip(self.epochs, self.epochs[1:], strict=False))
        if not (self.seeds >= 1 and self.epochs and self.epochs[0] >= 1 and rising):
            raise SettingsError(
                f"seeds={self.seeds}, epochs={list(self.epochs)}: need at least one seed, and "
                "epochs that rise from at least 1."
            )
        if self.budget < 1 or self.curve < 1:
            raise SettingsError(f"budget={self.budget}, curve={self.curve}: need at least 1.")


def quick() -> Settings:
    """One seed; everything else as in the full run."""
    return Settings(seeds=1)


def reproduce(
    data: str | Path | None = None,
    settings: Settings | None = None,
    *,
    workers: int = 1,
    cluster: str | None = None,
    folder: str | Path | None = None,
    progress: Progress = lambda what, share: None,
) -> Record:
    """Run every method on House Prices and compare with the paper's table 1.

    Args:
        data: folder that holds ``house_prices/train.csv``; see ``find_or_fetch``.
        settings: how much to run; the paper's five seeds if left out.
        workers: processes on this machine.
        cluster: address of a Ray cluster.
        folder: where finished runs are kept, to go on from after an interruption.
        progress: called with what was done and the share of the whole.
    """
    start, settings = time.perf_counter(), settings or Settings()
    path, tasks, digest = _read(data)
    todo = _jobs(settings, tasks, digest)
    results = sweep(todo, Run(workers, cluster, folder, progress=progress))
    by_name: dict[str, list[Any]] = {}
    for key, job in todo.items():
        by_name.setdefault(job.kind, []).append(results[key])
    pair = _pair(tasks)
    return Record(
        kind="reproduce",
        name=NAME,
        figures={
            "pair": {**pair.figures(), **pair.spectra()},
            **_figures(by_name, samples_of(tasks.attacker), log_steps(settings.curve)),
        },
        settings={
            **dataclasses.asdict(settings),
            "loop": dataclasses.asdict(loop.Settings()),
            "published": published(NAME)["table"],
            "deterministic": [name for name, row in ROWS.items() if not row.seeded],
        },
        data={
            "file": {"name": path.name, "sha256": digest, "as_expected": digest == SHA256},
            **data_figures(primary=tasks.primary, harmful=tasks.harmful, attacker=tasks.attacker),
        },
        seed=0,
        seconds=time.perf_counter() - start,
    )


def jobs(data: str | Path | None, settings: Settings) -> dict[str, Job]:
    """What ``reproduce`` runs."""
    _, tasks, digest = _read(data)
    return _jobs(settings, tasks, digest)


def _read(data: str | Path | None) -> tuple[Path, Tasks, str]:
    """The file, the released code's split of it, and its hash."""
    path = find_or_fetch(data)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        warnings.warn(
            f"{path} has sha256 {digest}, Kaggle's file {SHA256}: figures may differ from ours.",
            stacklevel=3,
        )
    return path, released_split(path), digest


def _jobs(settings: Settings, tasks: Tasks, digest: str) -> dict[str, Job]:
    """One job a method and seed; its kind is the method."""
    same = {k: v for k, v in dataclasses.asdict(settings).items() if k != "seeds"}
    return {
        key_of(__version__, NAME, "by seed", name, seed, same, digest): Job(
            _one, (name, seed, settings, tasks), f"{name}: seed {seed}"
        )
        for name in (ORIGINAL, *ROWS)
        for seed in range(settings.seeds)
    }


def _pair(tasks: Tasks) -> Pair:
    return Pair.of(gram(tasks.primary), gram(tasks.harmful))


def _one(name: str, seed: int, settings: Settings, tasks: Tasks) -> dict[str, Any]:
    """One method with one seed: at each number of epochs both κ, the attacks, the curves.

    A method that draws no random numbers is made again and meets that seed's attackers.
    """
    pair, samples = _pair(tasks), samples_of(tasks.attacker)
    (x_p, y_p), (x_h, _) = tasks.primary.train.tensors(), tasks.harmful.train.tensors()
    eye = torch.eye(x_p.shape[1], dtype=torch.float64)
    found: Found = iter([(CLOSED, eye)])
    if name != ORIGINAL:
        problem = LinearProblem(
            eye, pair.primary.gram, pair.harmful.gram, (tasks.primary, tasks.harmful)
        )
        chosen = loop.Settings()
        stops = settings.epochs
        if ROWS[name].looped:  # one run passes them all
            stops = tuple(sorted({*stops, *(mark for mark in PATH if mark < stops[-1])}))
        found = ROWS[name].find(Setting(problem, (x_p, y_p), x_h, chosen, stops), seed)
    marks = log_steps(settings.curve)
    done: dict[str, Any] = {"path": [], "cells": {}}
    for epochs, theta in found:
        wanted = epochs in (CLOSED, *settings.epochs)
        try:
            if isinstance(theta, NumericalError):
                raise theta
            ratios = pair.ratios(theta)
        except NumericalError as error:
            if wanted:
                done["cells"][str(epochs)] = {"diverged": str(error)}
            continue
        done["path"].append([epochs, ratios["released"]["rir"], ratios["honest"]["rir"]])
        if not wanted:
            continue
        curves = norm_ratios((tasks.primary, tasks.harmful), theta, settings.curve)
        done["cells"][str(epochs)] = {
            "ratios": ratios,
            "attacks": attack(theta, samples, settings.budget, seed),
            "norm_ratio": {task: [curve[t] for t in marks] for task, curve in curves.items()},
        }
    return done


def _figures(
    by_name: Mapping[str, Sequence[Mapping[str, Any]]], samples: Samples, marks: list[int]
) -> dict[str, Any]:
    """Rows of the table and the norm-ratio curves, from the runs that did not diverge."""
    chance = chance_of(samples)
    every = {
        f"{name} {epochs}" if epochs != str(CLOSED) else name: (name, int(epochs), runs)
        for name, runs in by_name.items()
        for epochs in runs[0]["cells"]
    }
    done = {
        cell: [
            run["cells"][str(epochs)] for run in runs if "diverged" not in run["cells"][str(epochs)]
        ]
        for cell, (_, epochs, runs) in every.items()
    }
    costs = paid({c: [run["attacks"] for run in runs] for c, runs in done.items() if runs}, chance)
    rows, curves = [], {}
    for cell, (name, epochs, runs) in every.items():
        row = ROWS.get(name)
        label = row.label if row else name
        if done[cell]:
            curves[cell] = {"label": label, "epochs": epochs, **_means(done[cell])}
        if row is not None:
            kept, tried = (done[cell], len(runs)) if row.seeded else (done[cell][:1], 1)
            said = published(NAME)["methods"].get(row.said)
            rows.append(
                {
                    "method": name,
                    "label": label,
                    "epochs": epochs,
                    "published": said,
                    "runs": tried,
                    **compare(said, [run["ratios"] for run in kept], tried),
                    "attacks": costs.get(cell, {}),
                }
            )
    return {
        "rows": rows,
        "identity": costs[ORIGINAL],
        "chance": chance,
        "norm_ratio": {"steps": marks, "curves": curves},
        "path": {name: _path(by_name[name]) for name, row in ROWS.items() if row.looped},
    }


def _means(cells: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Norm-ratio curves of both tasks, mean over the seeds."""
    return {
        task: np.mean([cell["norm_ratio"][task] for cell in cells], axis=0).tolist()
        for task in ("primary", "harmful")
    }


def _path(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """RIR along the epochs of the released loop: geometric means over the seeds."""
    whole = [run["path"] for run in runs if len(run["path"]) == len(runs[0]["path"])]
    means = np.exp(np.log(np.array(whole)[:, :, 1:]).mean(0))
    epochs = [int(point[0]) for point in whole[0]]
    return {"epochs": epochs, "released": means[:, 0].tolist(), "honest": means[:, 1].tolist()}
