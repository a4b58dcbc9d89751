"""The paper's experiments, run again and set beside what it printed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from immunis.core.errors import SettingsError, unknown
from immunis.core.files import key_of
from immunis.core.jobs import HERE, Job, Run, sweep
from immunis.core.records import Record
from immunis.core.releases import release
from immunis.data.sources.house_price_table import find_or_fetch
from immunis.paper import deep_tables, house_prices, mnist
from immunis.paper.figures import FIGURES
from immunis.paper.provenance import code_digest, makers, signed
from immunis.paper.published import printed
from immunis.paper.tables import flat_table, tables_of

EXPERIMENTS: dict[str, Any] = {"house-prices": house_prices, "mnist": mnist}


def settings_of(
    experiment: str,
    quick: bool = False,
    seeds: int | None = None,
    pairs: Sequence[tuple[int, int]] | None = None,
) -> Any:
    """Return how much of an experiment to run; ``quick`` means one seed, and two digit pairs.

    ``seeds`` replaces the paper's 5 (House Prices) or 3 (MNIST). ``pairs`` replaces MNIST's 90
    pairs of (primary, harmful) digits, or the quick run's two.
    """
    if experiment == "deep":
        raise SettingsError("deep needs a network: use immunis.paper.deep.reproduce(pipeline).")
    if experiment not in EXPERIMENTS:
        raise unknown("experiment", experiment, [*EXPERIMENTS, "deep"])
    if pairs is not None and experiment != "mnist":
        raise SettingsError(f"pairs of digits are for mnist, not for {experiment}.")
    module = EXPERIMENTS[experiment]
    given = {"seeds": seeds, "pairs": None if pairs is None else tuple(pairs)}
    changed = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(module.QUICK if quick else module.Settings(), **changed)


def planned(
    experiment: str,
    data: str | Path | None,
    settings: Any,
    fetch: bool = False,
    device: str = "cpu",
) -> tuple[dict[str, Job], Any, dict[str, Any]]:
    """Return the jobs that ``reproduce`` runs, their data, and what a record says of it."""
    if fetch and experiment != "house-prices":
        raise SettingsError(f"fetch is for house-prices, not for {experiment}.")
    if fetch:
        find_or_fetch(data, fetch=True)
    source, description = EXPERIMENTS[experiment].read(data)
    jobs = EXPERIMENTS[experiment].jobs(source, settings, device)
    code = code_digest()
    keyed = {
        key_of(code, experiment, *parts, description): signed(job, device) for parts, job in jobs
    }
    return keyed, source, description


def reproduce(
    experiment: str,
    data: str | Path | None = None,
    settings: Any = None,
    *,
    fetch: bool = False,
    run: Run = HERE,
) -> Record:
    """Run one of the paper's linear experiments again and compare.

    Args:
        experiment: ``"house-prices"`` or ``"mnist"``.
        data: folder with the data files; ``$IMMUNIS_DATA`` or ``~/.cache/immunis`` if left out.
        settings: from ``settings_of``; everything if left out.
        fetch: get House Prices from OpenML if no file is found; otherwise no network is used.
        run: where jobs run, and on which device the loop trains. Its folder keeps finished jobs,
            to continue after an interruption.

    Raises:
        InputError: for data that is missing, damaged or not what the paper used.
        SettingsError: for an unknown experiment or impossible settings.
    """
    start, settings = time.perf_counter(), settings or settings_of(experiment)
    module = EXPERIMENTS[experiment]
    jobs, source, description = planned(experiment, data, settings, fetch, run.device)
    results = list(sweep(jobs, run).values())
    figures = module.figures(source, settings, [result["found"] for result in results])
    figures["made_by"] = makers(results)
    loop, table = dataclasses.asdict(module.LOOP), printed(experiment)["table"]
    used = {**dataclasses.asdict(settings), "loop": loop, "published": table, **module.FIXED}
    seconds = time.perf_counter() - start
    return Record("reproduce", experiment, figures, used, description, 0, seconds)


def write(record: Record, folder: str | Path) -> list[Path]:
    """Write the record, its tables and its figures into a folder and return the paths.

    Tables for people go to ``tables.md`` and ``tables.tex``, plain numbers to ``figures.csv``.
    """
    made, flat = tables_of(record), deep_tables.flat_table if record.name == "deep" else flat_table
    files: dict[str, str | bytes] = {
        "record.json": record.to_file(),
        "tables.md": "\n\n".join(f"## {t.title}\n\n{t.markdown()}" for t in made) + "\n",
        "tables.tex": "\n\n".join(t.latex() for t in made) + "\n",
        "figures.csv": flat(record).csv(),
    }
    for name, draw in FIGURES[record.name].items():
        files |= {f"{name}.{kind}": draw(record, kind) for kind in ("png", "pdf")}
    return release(folder, files)
