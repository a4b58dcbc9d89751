"""Measure a task pair: two spectra, and how far the pair can be immunized at all."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from immunis.core.display import Shown
from immunis.core.errors import RankWarning
from immunis.core.jobs import Progress
from immunis.core.progress import with_progress
from immunis.core.records import Record, log_places
from immunis.data.checks import EPS64
from immunis.data.scale import warn_if_uneven
from immunis.data.task import Task
from immunis.theory.definition import Definition, definition
from immunis.theory.frontier import FLOOR, ceilings
from immunis.theory.gram import Gram, as_extractor, check_moments, check_pair, paired_grams
from immunis.theory.probes import rho_of_gram
from immunis.theory.rir import RelativeImmunizationRatio
from immunis.theory.spectrum import Spectrum, quiet_spectrum

RIDGE = 1e-3


@dataclass(frozen=True, repr=False)
class Measurement(Shown):
    """How a primary and a harmful task look through an extractor, before any defence.

    ``ceiling`` is RIR*, the largest RIR a further linear map can reach, ∞ with free directions;
    ``ridge_ceiling`` the same with both Grams damped by 10⁻³ of their mean eigenvalue.
    ``free_directions`` counts dimensions that only the harmful task uses: ``shared_ceiling`` is RIR
    of maps that drop or decouple them, ``floored_ceiling`` with them shrunk to 10⁻³.
    ``definition`` is how far a linear map can meet Definition 3.1: by the largest κ_H at the same
    κ_P. ``rho`` is the share of the harmful labels that a ridge probe explains, None for constant
    labels.
    """

    primary: Spectrum
    harmful: Spectrum
    ceiling: float
    ridge_ceiling: float
    shared_ceiling: float
    floored_ceiling: float
    free_directions: int
    definition: Definition
    rho: float | None
    tasks: tuple[Task, Task]
    seconds: float

    def __repr__(self) -> str:
        names = " / ".join(task.name for task in self.tasks)
        rho = "None" if self.rho is None else f"{self.rho:.3g}"
        return f"Measurement({names!r}, ceiling={self.ceiling:.3g}, rho={rho})"

    @cached_property
    def record(self) -> Record:
        """The measurement as a record (hashes the data, which takes a pass over it)."""
        primary, harmful = self.tasks
        spectra = {role: spectrum_figures(getattr(self, role)) for role in ("primary", "harmful")}
        ceilings = ("ceiling", "ridge_ceiling", "shared_ceiling", "floored_ceiling")
        names = (*ceilings, "free_directions", "rho")
        return Record(
            kind="measure",
            name=f"{primary.name} / {harmful.name}",
            figures={
                **spectra,
                **{name: getattr(self, name) for name in names},
                "definition": self.definition.figures,
            },
            settings={"ridge": RIDGE, "floor": FLOOR},
            data=data_figures(primary=primary, harmful=harmful),
            seconds=self.seconds,
        )


@with_progress
def measure(
    primary: Task,
    harmful: Task,
    model: nn.Module | Tensor | np.ndarray | None = None,
    *,
    progress: Progress | bool = True,
) -> Measurement:
    """Measure two tasks through an extractor (the inputs themselves if none is given).

    ``progress`` is True for a bar on a terminal and lines elsewhere, False for neither, or a
    function of a label and the share of the work done. Warns with ``RankWarning`` where a spectrum
    is rank-deficient, and names the features that are zero, constant or duplicates; with
    ``ScaleWarning`` where the features of a linear extractor differ much in scale. Raises
    ``InputError`` for data that cannot be measured.
    """
    began = time.perf_counter()
    check_pair(primary, harmful)
    extract = as_extractor(model)
    if not isinstance(model, nn.Module) or isinstance(model, nn.Linear):
        warn_if_uneven(primary, extract)
    counts = [task.train.count() for task in (primary, harmful)]
    done, total = 0, sum(count or 0 for count in counts) if all(counts) else 0

    def seen(rows: int) -> None:
        nonlocal done
        done += rows
        assert callable(progress)
        progress("reading features", min(1.0, done / total) if total else 0.0)

    grams = paired_grams(primary, harmful, extract, seen)
    return measured(grams, (primary, harmful), began)


def measured(grams: tuple[Gram, Gram], tasks: tuple[Task, Task], began: float) -> Measurement:
    """Return the measurement of two tasks' moments; work on them ``began`` at that time."""
    for task, moments in zip(tasks, grams, strict=True):
        check_moments(task.name, moments)
        warn_if_deficient(task.name, moments)
    primary, harmful = map(quiet_spectrum, grams)
    reach = ceilings(*grams)
    return Measurement(
        primary,
        harmful,
        ceiling=reach.rir,
        ridge_ceiling=ceilings(*grams, RIDGE).rir,
        shared_ceiling=reach.shared,
        floored_ceiling=reach.floored,
        free_directions=reach.free_directions,
        # an invertible map keeps the primary optimum
        definition=definition(RelativeImmunizationRatio(reach.harmful, 1.0), (0.0, 0.0)),
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
        "directions; drop redundant features to make κ cover all features.",
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
            **({} if task.scale is None else {"standardised": True}),
        }
        for role, task in tasks.items()
    }
