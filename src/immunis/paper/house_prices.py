"""Table 1 and the norm-ratio figure: linear regression on House Prices, five seeds."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from immunis.audits.feature_cache import chance_of, samples_of
from immunis.core.errors import RankWarning
from immunis.core.jobs import Job
from immunis.core.settings import require, whole
from immunis.core.thinning import log_steps
from immunis.data.sources.common import Tasks
from immunis.data.sources.house_prices import SHA256, find_or_fetch, released_split
from immunis.paper import released_loop
from immunis.paper.measures import Pair, attack, paid
from immunis.paper.published import compare, printed
from immunis.paper.rows import CLOSED, IDENTITY, ROWS, run_method
from immunis.theory.descent import norm_ratio_curve
from immunis.theory.frontier import whiten
from immunis.theory.gram import as_extractor, gram
from immunis.theory.measure import data_figures

LOOP = released_loop.Settings()
PATH = (1, 2, 5, 10, 20, 50, 100, 150, 200, 300, 500, 700)  # epochs to measure on the way
FIXED = {"deterministic": [n for n, row in ROWS.items() if not row.seeded and n != IDENTITY]}


@dataclass(frozen=True)
class Settings:
    """How much to run."""

    seeds: int = 5  # repeats of every method that draws random numbers
    epochs: tuple[int, ...] = (10, 100, 1000)  # released configuration, paper's text, its table
    budget: int = 1000  # steps the attackers may take
    curve: int = 1000  # steps of the norm-ratio curves

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("seeds", "budget", "curve"):
            whole(getattr(self, name), name, 1)
        rising = all(a < b for a, b in pairwise((0, *self.epochs)))
        require(bool(self.epochs) and rising, f"epochs={self.epochs}: expected rising numbers.")


QUICK = Settings(seeds=1)


def read(data: str | Path | None) -> tuple[Tasks, dict[str, Any]]:
    """Return the released code's split of ``house_prices/train.csv``, and a record's ``data``."""
    path = find_or_fetch(data)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        what = f"{path} has sha256 {digest}, Kaggle's file has {SHA256}: figures may differ."
        warnings.warn(what, stacklevel=4)
    tasks = released_split(path)
    file = {"name": path.name, "sha256": digest, "as_expected": digest == SHA256}
    used = data_figures(primary=tasks.primary, harmful=tasks.harmful, attacker=tasks.attacker)
    return tasks, {"file": file, **used}


def jobs(tasks: Tasks, settings: Settings) -> Iterator[tuple[tuple[Any, ...], Job]]:
    """Yield one job for each method and seed, after what decides its result besides the data."""
    same = {k: v for k, v in dataclasses.asdict(settings).items() if k != "seeds"}
    for name in ROWS:
        for seed in range(settings.seeds):
            job = Job(run_seed, (name, seed, settings, tasks), f"{name}: seed {seed}")
            yield (name, seed, same), job


def run_seed(name: str, seed: int, settings: Settings, tasks: Tasks) -> dict[str, Any]:
    """Return what one method finds with one seed; a cell has both κ, the attacks and the curves.

    A method without random numbers meets the attackers of the seed all the same.
    """
    pair, samples = Pair(gram(tasks.primary), gram(tasks.harmful)), samples_of(tasks.attacker)
    both, kept = {"primary": tasks.primary, "harmful": tasks.harmful}, log_steps(settings.curve)

    def more(theta: Tensor) -> dict[str, Any]:
        curves = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RankWarning)  # ranks are in the record
            for role, task in both.items():
                curve = norm_ratio_curve(gram(task, as_extractor(theta)), settings.curve)
                curves[role] = curve[kept].tolist()
        return {"attacks": attack(theta, samples, settings.budget, seed), "norm_ratio": curves}

    stops = set(settings.epochs)
    if ROWS[name].objective:  # one run passes them all
        stops |= {mark for mark in PATH if mark < settings.epochs[-1]}
    path, cells = run_method(
        name, pair, (tasks.primary, tasks.harmful), LOOP, sorted(stops), settings.epochs, seed, more
    )
    return {"method": name, "seed": seed, "path": path, "cells": cells}


def figures(tasks: Tasks, settings: Settings, results: Sequence[Any]) -> dict[str, Any]:
    """Return the figures of the pair, the rows of the table and the curves."""
    chance, said = chance_of(samples_of(tasks.attacker)), printed("house-prices")["methods"]
    paths: dict[str, list[Any]] = {}
    cells: dict[tuple[str, int], list[tuple[int, Any]]] = {}  # by method and epochs, with the seed
    for result in results:
        paths.setdefault(result["method"], []).append(result["path"])
        for epochs, cell in result["cells"].items():
            found = cells.setdefault((result["method"], int(epochs)), [])
            found.append((result["seed"], cell))
    done = {key: [c for _, c in found if "ratios" in c] for key, found in cells.items()}
    attacks = {key: [cell["attacks"] for cell in good] for key, good in done.items() if good}
    costs, rows, curves = paid(attacks, (IDENTITY, CLOSED), chance), [], {}
    for (name, epochs), found in cells.items():
        row, good = ROWS[name], done[name, epochs]
        head = {"label": row.label, "epochs": epochs}
        if good:
            curves[name if epochs == CLOSED else f"{name} {epochs}"] = head | {
                role: np.mean([cell["norm_ratio"][role] for cell in good], axis=0).tolist()
                for role in ("primary", "harmful")
            }
        if name != IDENTITY:
            compared = compare(said.get(row.said), found if row.seeded else found[:1], "diverged")
            compared |= {"diverged": compared["failed"], "attacks": costs.get((name, epochs), {})}
            rows.append({"method": name, **head, **compared})
    pair = Pair(gram(tasks.primary), gram(tasks.harmful))
    spectra = {"primary": pair.primary.spectrum, "harmful": pair.harmful.spectrum}
    eigenvalues = {role: each.eigenvalues.tolist() for role, each in spectra.items()}
    kappa_m = whiten(spectra["primary"], spectra["harmful"]).condition_number
    return {
        "pair": {**pair.figures(), "eigenvalues": eigenvalues, "kappa_m": kappa_m},
        "rows": rows,
        "identity": costs[IDENTITY, CLOSED],
        "chance": chance,
        "norm_ratio": {"steps": log_steps(settings.curve), "curves": curves},
        "path": {name: _mean_path(paths[name]) for name, row in ROWS.items() if row.objective},
    }


def _mean_path(paths: Sequence[Sequence[Sequence[float]]]) -> dict[str, list[float]]:
    """Return RIR along the epochs of the released loop: geometric means over the seeds."""
    longest = max(map(len, paths))
    complete = [path for path in paths if len(path) == longest]
    means = np.exp(np.log(np.reshape(complete, (len(complete), longest, 3))[:, :, 1:]).mean(0))
    epochs = [int(point[0]) for point in complete[0]]
    return {"epochs": epochs, "released": means[:, 0].tolist(), "honest": means[:, 1].tolist()}
