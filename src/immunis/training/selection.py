"""Evaluation on held-out rows, and which evaluation is the best.

A network may hide only the labels of the rows it was trained on, having memorised them. So the
probe that counts is the better of two attackers on held-out rows: one fits ridge probes on
training rows; the other cross-validates on held-out rows, as they are and brought to one length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from immunis.core.distributed import summed, world
from immunis.core.errors import NumericalError
from immunis.data.loader import Rows, Stream, spread
from immunis.data.task import target_matrix
from immunis.theory.feature_maps import even
from immunis.theory.gram import gram_of
from immunis.theory.rho import rho_of_gram
from immunis.theory.ridge import ridge_path
from immunis.theory.rir import rir
from immunis.theory.scores import score
from immunis.theory.spectrum import quiet_spectrum
from immunis.training.setup import TrainingRun, resting

SAMPLES, MOST = 4096, 8192  # rows for κ and ρ, and rows to score
RIDGES, FOLDS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6), 5
Labelled = tuple[Tensor, Tensor]
Figures = dict[str, Any]
Forward = Callable[[Tensor], tuple[Tensor, Tensor]]


def average_buffers(run: TrainingRun) -> None:
    """Average running statistics over processes, so that all hold one model."""
    if world() > 1:
        for buffer in run.student.buffers():
            if buffer.is_floating_point():
                buffer.copy_(summed(buffer) / world())


def evaluate(run: TrainingRun) -> Figures:
    """Return figures on held-out rows, in evaluation mode and full precision."""
    average_buffers(run)

    def forward(inputs: Tensor) -> tuple[Tensor, Tensor]:
        answers, features = run.model(inputs)
        return answers, features[""]

    with resting(run.student):
        figures = held_out_figures(run.streams, run.held, forward)
    return run.fabric.broadcast({"step": run.step, **figures})


@torch.no_grad()
def held_out_figures(streams: Sequence[Stream], held: Sequence[Rows], forward: Forward) -> Figures:
    """Return the primary score; for a harmful task κ and rank of both, ρ, and what probes read.

    ``forward(inputs)`` returns answers and features. κ and ρ are of at most 4096 training rows,
    or four per dimension.
    """
    primary, *others = streams
    answers, labels = _outputs(primary, spread(held[0], MOST), forward, 0)
    figures: Figures = {"primary": score(answers, labels, primary.task.kind)}
    if not others:
        return figures
    harmful, task = others[0], others[0].task
    unseen = _outputs(harmful, spread(held[1], MOST), forward, 1)
    width = unseen[0].shape[1]
    size = max(SAMPLES, 4 * width)
    seen = _outputs(harmful, spread(harmful.rows, size), forward, 1)
    own, _ = _outputs(primary, spread(primary.rows, size), forward, 1)
    moments = gram_of(seen[0], target_matrix(seen[1], task.kind, task.outputs))
    figures |= probe_figures(seen, unseen, task.kind, task.outputs)
    figures |= {"rho": rho_of_gram(moments), "samples": len(seen[0]), "dimension": width}
    for role, gram in (("primary", gram_of(own)), ("harmful", moments)):
        spectrum = quiet_spectrum(gram)
        figures[f"rank_{role}"] = spectrum.rank
        figures[f"kappa_{role}"] = spectrum.condition_number if spectrum.rank else math.nan
    return figures


def _outputs(stream: Stream, rows: Rows, forward: Forward, which: int) -> Labelled:
    """Return answers (0) or features (1) of rows, and their labels."""
    found = [(forward(x)[which].float().cpu(), y.cpu()) for x, y in stream.subset(rows)]
    values, labels = (torch.cat(column) for column in zip(*found, strict=True))
    if which and not bool(torch.isfinite(values).all()):
        raise NumericalError(f"the features of {stream.task.name} are not finite")
    return values, labels


def crossed(rows: Labelled, kind: str, outputs: int) -> float:
    """Return the cross-validated score of the best ridge probe."""
    z, targets = rows[0].double(), target_matrix(rows[1], kind, outputs)
    answers = [torch.zeros_like(targets) for _ in RIDGES]
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(len(z)))
    folds = min(FOLDS, len(z))
    for fold in range(folds):
        out = order % folds == fold
        found = ridge_path(z[~out], targets[~out], z[out], RIDGES)
        for answer, part in zip(answers, found, strict=True):
            answer[out] = part
    return max(score(answer, rows[1], kind) for answer in answers)


def probe_figures(seen: Labelled, held: Labelled, kind: str, outputs: int) -> Figures:
    """Return what probes read from held-out rows, and from rows that were trained on.

    ``probe`` decides; ``noise`` is its standard error (0 for regression). ``probe_held`` and
    ``probe_trained`` are cross-validated on equally many rows (``compared``) of either sort.
    """
    count = min(len(seen[0]), len(held[0]))

    def some(rows: Labelled) -> Labelled:
        drawn = torch.Generator().manual_seed(count)
        chosen = torch.randperm(len(rows[0]), generator=drawn)[:count]
        return rows[0][chosen], rows[1][chosen]

    targets, (z, labels) = target_matrix(seen[1], kind, outputs), held
    fitted = ridge_path(seen[0].double(), targets, z.double(), RIDGES)
    own = crossed(held, kind, outputs)
    evened = crossed((even(z.double()), labels), kind, outputs)
    read = max(own, evened, *(score(answer, labels, kind) for answer in fitted))
    constant = target_matrix(labels, kind, outputs).mean(0).expand(len(z), -1)
    return {
        "probe": read,
        "noise": _noise(len(z), read) if kind == "classification" else 0.0,
        "probe_held": own if count == len(z) else crossed(some(held), kind, outputs),
        "probe_trained": crossed(some(seen), kind, outputs),
        "chance": score(constant, labels, kind),
        "held": len(z),
        "compared": count,
    }


def _noise(rows: int, *shares: float) -> float:
    """Return the standard error of a difference of shares, each of so many rows."""
    return math.sqrt(sum(share * (1 - share) for share in shares) / rows)


def merit(
    figures: Figures, history: Sequence[Figures], judge: str, tolerance: float
) -> tuple[float, float]:
    """Return how good an evaluation is: the judged figure, and the primary score for ties.

    −∞ if the primary score is more than ``tolerance`` below the start's, ``history[0]``. A probe
    gains nothing below chance, nor within one standard error of the lowest evaluation, which may
    be low by luck. κ gains nothing if primary features lost directions or harmful ones gained
    some, since it then describes another subspace.
    """
    start = history[0]

    least = start["primary"] - tolerance

    def read(row: Figures) -> float:
        return float(max(row["probe"], row["chance"]))

    if judge == "primary":
        return figures["primary"], 0.0
    if figures["primary"] < least:
        return -math.inf, 0.0
    if judge == "probe":
        rows = [figures, *(row for row in history[1:] if not row["primary"] < least)]
        lowest = min(rows, key=read)
        return -max(read(figures), read(lowest) + lowest["noise"]), figures["primary"]
    primary, harmful = figures["kappa_primary"], figures["kappa_harmful"]
    if figures["rank_primary"] < start["rank_primary"]:
        primary = max(primary, start["kappa_primary"])
    if figures["rank_harmful"] > start["rank_harmful"]:
        harmful = min(harmful, start["kappa_harmful"])
    ratio = rir(
        primary=(start["kappa_primary"], primary), harmful=(start["kappa_harmful"], harmful)
    ).value
    return math.log(ratio) if ratio > 0 else -math.inf, figures["primary"]


def is_best(run: TrainingRun) -> bool:
    """Return True if the last evaluation is better than the best one before it."""

    def of(row: Figures) -> tuple[float, float]:
        return merit(row, run.history, run.judge, run.training.tolerance)

    rows = [row for row in run.history if row["step"] == run.best["step"]]
    best = (-math.inf, 0.0) if run.best["model"] is None else of(rows[0])
    return of(run.history[-1]) > best


def is_patient(run: TrainingRun) -> bool:
    """Return True unless ``patience`` evaluations have passed without a better one."""
    if not run.training.patience or run.best["model"] is None:
        return True
    return sum(r["step"] > run.best["step"] for r in run.history) < run.training.patience


def doubts(figures: Figures, start: Figures) -> list[str]:
    """Return doubts about a result on classes: too few rows, or memorised training rows."""
    found, chance = [], figures["chance"]

    def reads(row: Figures) -> bool:  # more than chance, by three standard errors
        return bool(row["probe"] - chance > 3 * _noise(row["held"], row["probe"], chance))

    if not reads(start):
        found.append(
            f"before training a probe reads {start['probe']:.1%} of the held-out harmful rows, the "
            f"best constant {chance:.1%}: too few rows to judge by. Raise harmful_held_out "
            "(or held_out), or give more harmful data."
        )
    held, trained = figures["probe_held"], figures["probe_trained"]
    once = start["probe_held"], start["probe_trained"]
    gap = held - trained - max(0.0, once[0] - once[1])
    if reads(figures) and gap > 3 * _noise(figures["compared"], held, trained, *once):
        found.append(
            f"a ridge probe reads {held:.1%} of harmful rows that were held out and {trained:.1%} "
            "of as many that were trained on: the network has learned those by heart. An "
            "attacker's rows are like the former. Train fewer layers or steps, or give more data."
        )
    return found
