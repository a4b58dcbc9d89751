"""The first run: every method on the bundled digits, probed by two attackers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import RankWarning
from immunis.core.jobs import Progress, silent
from immunis.core.records import Record, log_steps
from immunis.core.state import one_thread, quiet
from immunis.data.sources import digits
from immunis.data.task import Tasks
from immunis.methods import METHODS
from immunis.methods.immunize import immunize
from immunis.theory.gram import as_extractor, gram
from immunis.theory.measure import data_figures, measure, spectrum_figures
from immunis.theory.probes import rho_of_gram, ridge_probe
from immunis.theory.rir import relative_immunization_ratio
from immunis.theory.scores import answers, score
from immunis.theory.steps import line_search, norm_ratio_curve

STEPS = (10, 100, 1000)
CURVE = log_steps(STEPS[-1])
RUNS = {
    label: (method.name, settings)
    for method in METHODS.values()
    if method.solve is not None
    for label, settings in (method.demo or {method.name: {}}).items()
}


def probe(model: nn.Module | Tensor, tasks: Tasks) -> dict[str, Any]:
    """Return the test accuracy on the harmful task of two attackers with data of their own."""
    extract = as_extractor(model)
    moments = gram(tasks.attacker, extract)

    def accuracy(weights: Tensor, bias: Tensor | float = 0.0) -> float:
        found = answers(lambda inputs: extract(inputs) @ weights + bias, tasks.attacker)
        return score(*found, tasks.attacker.kind)

    path = itertools.islice(line_search(moments.matrix(), moments.cross()), max(STEPS) + 1)
    descent = {str(step): accuracy(w) for step, w in enumerate(path) if step in STEPS}
    return {"gradient_descent": descent, "ridge": accuracy(*ridge_probe(moments))}


def figures(model: nn.Module | Tensor, tasks: Tasks) -> dict[str, Any]:
    """Return spectra, RIR, norm-ratio curves and probes of one extractor."""
    ratio = relative_immunization_ratio(model, tasks.primary, tasks.harmful)
    pair = tasks.primary, tasks.harmful, tasks.attacker
    primary, harmful, attacker = (gram(task, as_extractor(model)) for task in pair)
    curves = {"primary": primary, "harmful": attacker}
    return {
        "rir": ratio.figures,
        "spectra": {name: spectrum_figures(pair[1]) for name, pair in ratio.spectra.items()},
        "rho": {"defender": rho_of_gram(harmful), "attacker": rho_of_gram(attacker)},
        "norm_ratio": {
            "steps": CURVE,
            **{role: norm_ratio_curve(of, CURVE[-1])[CURVE] for role, of in curves.items()},
        },
        "harmful_accuracy": probe(model, tasks),
    }


@one_thread()
def demo(seed: int = 0, progress: Progress = silent) -> Record:
    """Measure, immunize with every linear method, probe; return one record of it all."""
    start, tasks = time.perf_counter(), digits(seed=seed)
    pair, identity = (tasks.primary, tasks.harmful), torch.eye(64, dtype=torch.float64)
    with quiet(RankWarning):  # the record and the table hold ranks
        progress("measure", 0.0)
        measured = measure(*pair, progress=False)
        original = immunize(identity, *pair, "erase", strength=1.0, progress=False).record
        rows: dict[str, Mapping[str, Any]] = {
            "no defence": {
                **figures(identity, tasks),
                "primary_accuracy": original.figures["primary_score"]["before"],
                "seconds": 0.0,
                "settings": {},
            }
        }
        for index, (label, (method, settings)) in enumerate(RUNS.items()):

            def share(_: str, part: float, index: int = index, label: str = label) -> None:
                progress(label, (index + part) / len(RUNS))

            share("", 0.0)
            result = immunize(identity, *pair, method, seed=seed, progress=share, **settings)
            rows[label] = {
                **figures(result.model, tasks),
                "definition": result.record.figures["definition"],
                "primary_accuracy": result.record.figures["primary_score"]["after"],
                "exact_head": result.exact,
                "seconds": result.record.seconds,
                "settings": result.record.settings,
            }
    progress("done", 1.0)
    return Record(
        kind="demo",
        name="digits 0-4 (primary) against digits 5-9 (harmful)",
        figures={
            "ceiling": measured.ceiling,
            "ridge_ceiling": measured.ridge_ceiling,
            "free_directions": measured.free_directions,
            "methods": rows,
        },
        settings={"steps": list(STEPS)},
        data=data_figures(primary=tasks.primary, harmful=tasks.harmful, attacker=tasks.attacker),
        seed=seed,
        seconds=time.perf_counter() - start,
    )
