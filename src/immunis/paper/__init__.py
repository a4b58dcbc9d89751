"""The paper's linear experiments, run again and set beside what it printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from immunis.core.errors import SettingsError, unknown
from immunis.core.jobs import Job
from immunis.core.records import Record
from immunis.data.sources.house_prices import find_or_fetch
from immunis.paper import house_prices, mnist

EXPERIMENTS: dict[str, Any] = {house_prices.NAME: house_prices, mnist.NAME: mnist}


def reproduce(
    experiment: str,
    data: str | Path | None = None,
    *,
    quick: bool = False,
    seeds: int | None = None,
    pairs: Sequence[tuple[int, int]] | None = None,
    workers: int = 1,
    cluster: str | None = None,
    folder: str | Path | None = None,
    fetch: bool = False,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> Record:
    """Run one of the paper's linear experiments again and compare.

    Args:
        experiment: ``"house-prices"`` or ``"mnist"``.
        data: folder with the data files; ``$IMMUNIS_DATA`` or ``~/.cache/immunis`` if left out.
        quick: a small part of it: one seed, and six digit pairs.
        seeds: repeats, in place of the paper's 5 (House Prices) or 3 (MNIST).
        pairs: (primary, harmful) digits, in place of all 90 or the quick run's six; MNIST only.
        workers: processes on this machine.
        cluster: address of a Ray cluster instead.
        folder: where finished runs are kept, to go on from after an interruption.
        fetch: get House Prices from OpenML where no file is found; otherwise no network is used.
        progress: called with what was done and the share of the whole.

    Raises:
        InputError: for data that is missing, damaged or not what the paper used.
        SettingsError: for an unknown experiment or impossible settings.
    """
    module, settings = _chosen(experiment, data, quick, seeds, pairs, fetch)
    return module.reproduce(
        data, settings, workers=workers, cluster=cluster, folder=folder, progress=progress
    )


def planned(
    experiment: str,
    data: str | Path | None = None,
    *,
    quick: bool = False,
    seeds: int | None = None,
    pairs: Sequence[tuple[int, int]] | None = None,
    fetch: bool = False,
) -> dict[str, Job]:
    """The jobs that ``reproduce`` would run with these arguments; none is run."""
    module, settings = _chosen(experiment, data, quick, seeds, pairs, fetch)
    return module.jobs(data, settings)


def _chosen(
    experiment: str,
    data: str | Path | None,
    quick: bool,
    seeds: int | None,
    pairs: Sequence[tuple[int, int]] | None,
    fetch: bool,
) -> tuple[Any, Any]:
    """The experiment's module, and how much of it to run; data is fetched where asked."""
    if experiment not in EXPERIMENTS:
        raise unknown("experiment", experiment, EXPERIMENTS)
    module = EXPERIMENTS[experiment]
    settings = module.quick() if quick else module.Settings()
    if seeds is not None:
        settings = dataclasses.replace(settings, seeds=seeds)
    if pairs is not None:
        if experiment != mnist.NAME:
            raise SettingsError(f"pairs of digits are for {mnist.NAME}, not for {experiment}.")
        settings = dataclasses.replace(settings, pairs=tuple(pairs))
    if fetch:
        if experiment != house_prices.NAME:
            raise SettingsError(f"fetch is for {house_prices.NAME}, not for {experiment}.")
        find_or_fetch(data, fetch=True)
    return module, settings


__all__ = ["EXPERIMENTS", "planned", "reproduce"]
