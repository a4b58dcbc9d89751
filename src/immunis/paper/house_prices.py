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
import torch
from torch import nn

from immunis.attacks.arrays import Samples
from immunis.core.errors import InputError, NumericalError, RankWarning
from immunis.core.jobs import Job
from immunis.core.records import log_steps
from immunis.core.settings import require, whole
from immunis.core.state import quiet
from immunis.data.sources.house_price_table import SHA256, find_or_fetch, released_split
from immunis.data.task import Tasks
from immunis.paper import released_loop
from immunis.paper.measures import KINDS, Pair, attack, paid, ratios
from immunis.paper.published import compare, printed
from immunis.paper.released_loop import Side
from immunis.paper.rows import CLOSED, IDENTITY, ROWS, solved, trained
from immunis.theory.frontier import ceiling, whiten
from immunis.theory.gram import as_extractor, gram
from immunis.theory.measure import RIDGE, data_figures
from immunis.theory.spectrum import quiet_spectrum
from immunis.theory.steps import norm_ratio_curve

LOOP = released_loop.Settings()
PATH = (1, 2, 5, 10, 20, 50, 100, 150, 200, 300, 500, 700)  # epochs to measure on the way
NAMES = [name for name in ROWS if name != "text_step"]  # House Prices has one step size
FIXED = {"draws": 20}  # perturbations of every final layer


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

    @property
    def whole_table(self) -> bool:
        """Whether the runs are as many as those of the paper's table."""
        return self.seeds >= 5


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


def jobs(
    tasks: Tasks, settings: Settings, device: str = "cpu"
) -> Iterator[tuple[tuple[Any, ...], Job]]:
    """Yield one job for each method and seed, after what decides its result besides the data."""
    same = {k: v for k, v in dataclasses.asdict(settings).items() if k != "seeds"}
    for name in NAMES:
        for seed in range(settings.seeds):
            job = Job(run_seed, (name, seed, settings, tasks, device), f"{name}: seed {seed}")
            yield (name, seed, same), job


def run_seed(
    name: str, seed: int, settings: Settings, tasks: Tasks, device: str = "cpu"
) -> dict[str, Any]:
    """Return what one method finds with one seed; a cell has both κ, the attacks and the curves.

    A method without random numbers meets the attackers of the seed all the same. A trained one runs
    once more from a start that differs by rounding.
    """
    pair, samples = _pair(tasks), Samples.of(tasks.attacker)
    before, kept = pair.kappas(), log_steps(settings.curve)
    found: dict[str, Any] = {"method": name, "seed": seed, "path": [], "cells": {}}

    def keep(epoch: int, layer: nn.Linear, again: bool) -> None:
        final = epoch in (CLOSED, *settings.epochs)
        cell = found["cells"].setdefault(str(epoch), {}) if final else {}
        try:
            factors = ratios(before, pair.kappas(layer, FIXED["draws"]))
        except NumericalError as error:
            cell["lost" if again else "failed"] = str(error)
            return
        if again:
            cell["rerun"] = factors
            return
        found["path"].append([epoch, *(factors[kind]["rir"] for kind in KINDS)])
        if final:
            cell |= {"ratios": factors, "norm_ratio": _curves(tasks, layer, settings.curve, kept)}
            cell["attacks"] = attack(layer, samples, settings.budget, seed)

    row, both = ROWS[name], (tasks.primary, tasks.harmful)
    if row.objective:
        stops = sorted({*settings.epochs, *(m for m in PATH if m < settings.epochs[-1])})
        tensors = (task.train.tensors() for task in both)
        primary, harmful = (Side(x, [torch.arange(len(x))] * 2, [y] * 2) for x, y in tensors)
        for index, epoch, layer in trained(row, primary, harmful, LOOP, stops, seed, 1, device):
            keep(epoch, layer.cpu(), index == 1)
        return found
    grams = gram(tasks.primary), gram(tasks.harmful)
    for epoch in settings.epochs if row.seeded else (CLOSED,):
        try:
            keep(epoch, solved(row, both, grams, LOOP, epoch, seed), False)
        except (InputError, NumericalError) as error:
            found["cells"][str(epoch)] = {"failed": str(error)}
    return found


def _pair(tasks: Tasks) -> Pair:
    return Pair(tasks.primary.train.tensors()[0], tasks.harmful.train.tensors()[0])


def _curves(
    tasks: Tasks, layer: nn.Linear, steps: int, kept: Sequence[int]
) -> dict[str, list[float]]:
    """Return the norm ratio (eq. 10) of probing both tasks, at the steps to keep."""
    with quiet(RankWarning):  # ranks are in the record
        both = {"primary": tasks.primary, "harmful": tasks.harmful}
        grams = {role: gram(task, as_extractor(layer)) for role, task in both.items()}
        return {role: norm_ratio_curve(g, steps)[kept].tolist() for role, g in grams.items()}


def figures(tasks: Tasks, settings: Settings, results: Sequence[Any]) -> dict[str, Any]:
    """Return the figures of the pair, the rows of the table and the curves."""
    chance, said = Samples.of(tasks.attacker).chance, printed("house-prices")["methods"]
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
            cells_of = found if row.seeded else found[:1]
            compared = compare(said.get(row.said), cells_of, settings.whole_table)
            compared["attacks"] = costs.get((name, epochs), {})
            rows.append({"method": name, **head, **compared})
    return {
        "pair": _pair_figures(tasks),
        "rows": rows,
        "identity": costs[IDENTITY, CLOSED],
        "chance": chance,
        "norm_ratio": {"steps": log_steps(settings.curve), "curves": curves},
        "path": {name: _mean_path(paths[name]) for name in NAMES if ROWS[name].objective},
    }


def _pair_figures(tasks: Tasks) -> dict[str, Any]:
    """Return what a record keeps of the inputs: both κ, their rank, the ceiling, eigenvalues."""
    grams, pair = (gram(tasks.primary), gram(tasks.harmful)), _pair(tasks)
    spectra = quiet_spectrum(grams[0]), quiet_spectrum(grams[1])
    sides = [
        {
            "released": side.floor(1.0, FIXED["draws"]),
            "released_tenfold": side.floor(10.0, FIXED["draws"]),
            "honest": side.honest(),
            "rank": spectra[index].rank,
            "dimension": spectra[index].dimension,
            "samples": grams[index].samples,
        }
        for index, side in enumerate((pair.primary, pair.harmful))
    ]
    values = [each.eigenvalues.tolist() for each in spectra]
    return {
        **dict(zip(("primary", "harmful"), sides, strict=True)),
        "ceiling": ceiling(*grams),
        "ridge_ceiling": ceiling(*grams, RIDGE),
        "free_directions": spectra[1].free_directions(spectra[0]),
        "eigenvalues": dict(zip(("primary", "harmful"), values, strict=True)),
        "kappa_m": whiten(*spectra).condition_number,
    }


def _mean_path(paths: Sequence[Sequence[Sequence[float]]]) -> dict[str, list[float]]:
    """Return RIR along the epochs of the released loop: geometric means over the seeds."""
    longest = max(map(len, paths))
    complete = [path for path in paths if len(path) == longest]
    means = np.exp(np.log(np.reshape(complete, (len(complete), longest, 3))[:, :, 1:]).mean(0))
    epochs = [int(point[0]) for point in complete[0]]
    return {"epochs": epochs, "released": means[:, 0].tolist(), "honest": means[:, 1].tolist()}
