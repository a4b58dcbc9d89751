"""Measure a task pair: two spectra, and how far the pair can be immunized at all."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import RankWarning
from immunis.core.records import Record
from immunis.core.thinning import log_places
from immunis.data.checks import EPS64
from immunis.data.task import Task
from immunis.theory.frontier import ceiling
from immunis.theory.gram import Gram, as_extractor, check_moments, paired_grams
from immunis.theory.rho import rho_of_gram
from immunis.theory.spectrum import Spectrum, quiet_spectrum

RIDGE = 1e-3


@dataclass(frozen=True)
class Measurement:
    """How a primary and a harmful task look through an extractor, before any defence.

    ``ceiling`` is RIR*, the largest RIR a further linear map can reach, ∞ with free directions;
    ``ridge_ceiling`` the same with both Grams damped by 10⁻³ of their mean eigenvalue.
    ``free_directions`` counts dimensions that only the harmful task uses. ``rho`` is the share of
    the harmful labels that a ridge probe explains, None for constant labels.
    """

    primary: Spectrum
    harmful: Spectrum
    ceiling: float
    ridge_ceiling: float
    free_directions: int
    rho: float | None
    tasks: tuple[Task, Task]
    seconds: float

    @cached_property
    def record(self) -> Record:
        """The measurement as a record (hashes the data, which takes a pass over it)."""
        primary, harmful = self.tasks
        spectra = {role: spectrum_figures(getattr(self, role)) for role in ("primary", "harmful")}
        names = ("ceiling", "ridge_ceiling", "free_directions", "rho")
        return Record(
            kind="measure",
            name=f"{primary.name} / {harmful.name}",
            figures=spectra | {name: getattr(self, name) for name in names},
            settings={"ridge": RIDGE},
            data=data_figures(primary=primary, harmful=harmful),
            seconds=self.seconds,
        )


def measure(primary: Task, harmful: Task, model: nn.Module | Tensor | None = None) -> Measurement:
    """Measure two tasks through an extractor (the inputs themselves if none is given).

    Warns with ``RankWarning`` where a spectrum is rank-deficient, and names the features that are
    zero, constant or duplicates. Raises ``InputError`` for data that cannot be measured.
    """
    began = time.perf_counter()
    return measured(paired_grams(primary, harmful, as_extractor(model)), (primary, harmful), began)


def measured(grams: tuple[Gram, Gram], tasks: tuple[Task, Task], began: float) -> Measurement:
    """Return the measurement of two tasks' moments; work on them ``began`` at that time."""
    for task, moments in zip(tasks, grams, strict=True):
        check_moments(task.name, moments)
        warn_if_deficient(task.name, moments)
    primary, harmful = map(quiet_spectrum, grams)
    return Measurement(
        primary,
        harmful,
        ceiling=ceiling(*grams),
        ridge_ceiling=ceiling(*grams, RIDGE),
        free_directions=harmful.free_directions(primary),
        rho=rho_of_gram(grams[1]) if float(grams[1].target_scatter.trace()) > 0 else None,
        tasks=tasks,
        seconds=time.perf_counter() - began,
    )


def warn_if_deficient(name: str, moments: Gram) -> None:
    """Warn when a Gram is rank-deficient, naming the columns that make it so."""
    spectrum = quiet_spectrum(moments)
    if spectrum.rank == spectrum.dimension:
        return
    causes = []
    if moments.samples < moments.dimension:
        causes.append(f"only {moments.samples} samples; use at least {moments.dimension}")
    for what, columns in degenerate_columns(moments).items():
        if columns:
            listed = ", ".join(map(str, columns[:8])) + (", ..." if len(columns) > 8 else "")
            causes.append(f"{len(columns)} {what} feature(s) ({listed})")
    why = "; ".join(causes) or "some features are linear combinations of others"
    warnings.warn(
        f"{name}: rank {spectrum.rank} of {spectrum.dimension}: {why}. κ is over the non-zero "
        "directions; drop redundant features to make it speak of all.",
        RankWarning,
        stacklevel=3,
    )


def degenerate_columns(moments: Gram) -> dict[str, list[int]]:
    """Return the columns that are zero, constant (but not zero), or copies of an earlier column.

    Columns are compared to rounding, spreads and means apart: a large common mean makes no copies.
    """
    spread, size = moments.scatter.diagonal(), moments.mean.abs()
    zero = (spread == 0) & (size == 0)
    constant = ~zero & (spread <= moments.samples * (4 * EPS64 * size) ** 2)
    distance = spread[:, None] + spread[None, :] - 2 * moments.scatter
    apart = (moments.mean[:, None] - moments.mean[None, :]).abs()
    same = (distance <= 1e-12 * spread[:, None]) & (apart <= 1e-12 * size[:, None])
    same &= ~(zero | constant)[:, None] & ~(zero | constant)[None, :]
    copy = torch.tril(same, diagonal=-1).any(1)
    masks = {"zero": zero, "constant": constant, "duplicate": copy}
    return {name: mask.nonzero().flatten().tolist() for name, mask in masks.items()}


def spectrum_figures(spectrum: Spectrum) -> dict[str, Any]:
    """Return what a record keeps of a spectrum."""
    names = ("condition_number", "relative_error", "rank", "dimension", "samples", "eigenvalues")
    return {name: getattr(spectrum, name) for name in names}


def spectrum_outline(spectrum: Spectrum, most: int = 48) -> dict[str, Any]:
    """Return the same for charts: ``most`` non-zero eigenvalues, evenly spread in log-index.

    ``index`` counts from 1; eigenvalues are kept to four digits.
    """
    places = log_places(spectrum.rank, most)
    return {
        "condition_number": spectrum.condition_number if spectrum.rank else math.nan,
        "rank": spectrum.rank,
        "dimension": spectrum.dimension,
        "samples": spectrum.samples,
        "index": places,
        "eigenvalues": [float(f"{float(spectrum.eigenvalues[i - 1]):.4g}") for i in places],
    }


def data_figures(**tasks: Task) -> dict[str, Any]:
    """Return what a record keeps of the data, by role: name, kind, size and hashes."""
    return {
        role: {
            "name": task.name,
            "kind": task.kind,
            "outputs": task.outputs,
            "train": task.train.fingerprint(),
            "test": None if task.test is None else task.test.fingerprint(),
        }
        for role, task in tasks.items()
    }
