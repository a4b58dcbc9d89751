"""Evaluation on held-out rows, and which evaluation is the best.

A network may hide only the labels of the rows it was trained on, having memorised them. So the
probe that counts is the better of two attackers on held-out rows: one fits ridge probes on
training rows; the other cross-validates on held-out rows, as they are and brought to one length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from immunis.core.distributed import summed, world
from immunis.core.errors import NumericalError
from immunis.data.loader import Rows, Stream, spread
from immunis.data.task import target_matrix
from immunis.theory.feature_maps import even, narrowed
from immunis.theory.gram import gram_of
from immunis.theory.probes import rho_of_gram, ridges_of
from immunis.theory.rir import rir
from immunis.theory.scores import row_hits, score, score_of
from immunis.theory.spectrum import quiet_spectrum
from immunis.training.paired import MOST, least_score
from immunis.training.setup import TrainingRun, resting

SAMPLES = 4096  # rows for κ and ρ
RIDGES, FOLDS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6), 5
WIDEST = 512  # features of a stage that are probed: random combinations of wider ones
Labelled = tuple[Tensor, Tensor]
Figures = dict[str, Any]
Forward = Callable[[Tensor], tuple[Tensor, Mapping[str, Tensor]]]


def average_buffers(run: TrainingRun) -> None:
    """Average running statistics over processes, so that all hold one model."""
    if world() > 1:
        for buffer in run.student.buffers():
            if buffer.is_floating_point():
                buffer.copy_(summed(buffer) / world())


def evaluate(run: TrainingRun) -> Figures:
    """Return figures on held-out rows, in evaluation mode and full precision."""
    average_buffers(run)
    run.student.module.borders = None  # grids are even
    with resting(run.student):
        figures = held_out_figures(
            run.streams,
            run.held,
            run.model,
            run.objective.layers,
            run.reference,
            run.training.tolerance,
        )
    return run.fabric.broadcast({"step": run.step, **figures})


@torch.no_grad()
def held_out_figures(
    streams: Sequence[Stream],
    held: Sequence[Rows],
    forward: Forward,
    layers: Sequence[str] = ("",),
    reference: Tensor | None = None,
    tolerance: float = 0.0,
) -> Figures:
    """Return the primary score; for a harmful task κ and rank of both, ρ, and what probes read.

    ``forward(inputs)`` returns answers, and features by layer. ``depths`` is what a probe reads at
    each layer but the first. κ and ρ are of at most 4096 training rows, or four per dimension.
    ``least`` is the ``least_score`` beside ``reference``, another model's answers to primary rows.
    """
    primary, *others = streams

    def features(stream: Stream, rows: Rows, layers: Sequence[str]) -> list[Labelled]:
        found, labels = _outputs(stream, rows, lambda x: _narrow(forward(x)[1], layers))
        for layer, values in zip(layers, found, strict=True):
            if not bool(torch.isfinite(values).all()):
                where = f" at {layer}" if layer else ""
                raise NumericalError(f"the features of {stream.task.name}{where} are not finite")
        return [(values, labels) for values in found]

    (answers,), labels = _outputs(primary, spread(held[0], MOST), lambda x: [forward(x)[0]])
    hits = row_hits(answers, labels, primary.task.kind)
    figures: Figures = {"primary": score_of(hits)}
    if reference is not None:
        figures["least"] = least_score(reference, hits, tolerance)
    if not others:
        return figures
    harmful, task = others[0], others[0].task
    unseen, *unseen_deep = features(harmful, spread(held[1], MOST), layers)
    width = unseen[0].shape[1]
    size = max(SAMPLES, 4 * width)
    seen, *seen_deep = features(harmful, spread(harmful.rows, size), layers)
    ((own, _),) = features(primary, spread(primary.rows, size), layers[:1])
    moments = gram_of(seen[0], target_matrix(seen[1], task.kind, task.outputs))
    figures |= probe_figures(seen, unseen, task.kind, task.outputs)
    figures["depths"] = {
        layer: max(
            fitted(before, after, task.kind, task.outputs), crossed(after, task.kind, task.outputs)
        )
        for layer, before, after in zip(layers[1:], seen_deep, unseen_deep, strict=True)
    }
    figures |= {"rho": rho_of_gram(moments), "samples": len(seen[0]), "dimension": width}
    for role, gram in (("primary", gram_of(own)), ("harmful", moments)):
        spectrum = quiet_spectrum(gram)
        figures[f"rank_{role}"] = spectrum.rank
        figures[f"kappa_{role}"] = spectrum.condition_number if spectrum.rank else math.nan
    return figures


def _narrow(features: Mapping[str, Tensor], layers: Sequence[str]) -> list[Tensor]:
    """Return features by layer, those of stages narrowed alike in every call."""
    draw = torch.Generator().manual_seed(0)
    return [
        features[name] if not name else narrowed(features[name], WIDEST, draw) for name in layers
    ]


def _outputs(
    stream: Stream, rows: Rows, read: Callable[[Tensor], list[Tensor]]
) -> tuple[list[Tensor], Tensor]:
    """Return what is read of rows, and their labels."""
    found = [(*(part.float().cpu() for part in read(x)), y.cpu()) for x, y in stream.subset(rows)]
    *values, labels = (torch.cat(column) for column in zip(*found, strict=True))
    return values, labels


def fitted(seen: Labelled, held: Labelled, kind: str, outputs: int) -> float:
    """Return the held-out score of the best ridge probe that is fitted on training rows."""
    targets = target_matrix(seen[1], kind, outputs)
    answers = ridge_answers(seen[0].double(), targets, held[0].double())
    return max(score(answer, held[1], kind) for answer in answers)


def ridge_answers(features: Tensor, targets: Tensor, new: Tensor) -> list[Tensor]:
    """Return what a ridge probe answers for new features, for each of ``RIDGES``."""
    probes = map(ridges_of(features, targets).probe, RIDGES)
    return [new @ weights + bias for weights, bias in probes]


def crossed(rows: Labelled, kind: str, outputs: int) -> float:
    """Return the cross-validated score of the best ridge probe."""
    z, targets = rows[0].double(), target_matrix(rows[1], kind, outputs)
    answers = [torch.zeros_like(targets) for _ in RIDGES]
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(len(z)))
    if kind == "classification":  # every class is dealt to the folds in turns
        order = order[rows[1][order].argsort(stable=True)]
    place, folds = order.argsort(), min(FOLDS, len(z))
    for fold in range(folds):
        out = place % folds == fold
        found = ridge_answers(z[~out], targets[~out], z[out])
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

    (z, labels), own = held, crossed(held, kind, outputs)
    evened = crossed((even(z.double()), labels), kind, outputs)
    read = max(own, evened, fitted(seen, held, kind, outputs))
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


def readable(figures: Figures) -> float:
    """Return what a probe reads, the mean over depths; at each of them at least chance."""
    found = [figures["probe"], *figures.get("depths", {}).values()]
    return sum(max(value, figures["chance"]) for value in found) / len(found)


def merit(
    figures: Figures, history: Sequence[Figures], judge: str, least: float
) -> tuple[float, float]:
    """Return how good an evaluation is: the judged figure, and the primary score for ties.

    −∞ if the primary score is below ``least``, or the evaluation's own least score. A probe gains
    nothing below chance, nor within one standard error of the lowest evaluation, which may be low
    by luck. κ gains nothing if primary features lost directions or harmful ones gained some, since
    it then describes another subspace.
    """
    start, read = history[0], readable

    def lost(row: Figures) -> bool:
        return bool(row["primary"] < row.get("least", least))

    if judge == "primary":
        return figures["primary"], 0.0
    if lost(figures):
        return -math.inf, 0.0
    if judge == "probe":
        rows = [figures, *(row for row in history[1:] if not lost(row))]
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
        return merit(row, run.history, run.judge, run.least)

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
            "of as many that were trained on: the network has memorised those. An "
            "attacker's rows are like the former. Train fewer layers or steps, or give more data."
        )
    return found
