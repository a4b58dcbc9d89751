"""Two models' answers to the same rows, compared row by row: how far the score fell, how surely."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from immunis.data.loader import Stream, spread
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.theory.scores import row_hits, score_of
from immunis.training.settings import Training
from immunis.training.setup import divided

BATCH, MOST = 256, 8192  # rows at a time, and held-out rows to score


def fall(reference: Tensor, hits: Tensor) -> tuple[float, float]:
    """Return how far a score fell and the standard error of that, from ``row_hits`` of both."""
    one, other = (
        part.double() / len(part) if part.dtype == torch.bool else -part
        for part in (reference, hits)
    )
    apart = one - other
    return float(apart.sum()), float(apart.std() * math.sqrt(len(apart)))


def least_score(reference: Tensor, hits: Tensor, tolerance: float) -> float:
    """Return the score that ``hits`` must reach: a standard error and a tolerance may be missing.

    The standard error is of the difference to ``reference``, row by row.
    """
    error = fall(reference, hits)[1]
    return score_of(reference) - tolerance - (error if math.isfinite(error) else 0.0)


@torch.no_grad()
def primary_hits(cut: Cut, task: Task, training: Training, held: bool) -> Tensor:
    """Return a model's ``row_hits`` on the held-out rows of its training, or on the test rows."""
    split = task.train if held or task.test is None else task.test
    device, workers = cut.example.device, training.workers
    stream = Stream(task, BATCH, split=split, device=device, workers=workers)
    rows = spread(divided(task, "primary", training)[1], MOST) if held else stream.rows
    found = [(cut.answers(x).float().cpu(), y.cpu()) for x, y in stream.subset(rows, BATCH)]
    answers, labels = (torch.cat(column) for column in zip(*found, strict=True))
    return row_hits(answers, labels, task.kind)
