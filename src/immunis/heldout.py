"""How far a defence has come, on data it was not trained on: what early stopping goes by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from immunis.attacks.base import encode, score
from immunis.attacks.ridge import ridge_probe
from immunis.gram import gram_of
from immunis.readable import rho_of_gram
from immunis.spectrum import quiet_spectrum
from immunis.streams import Rows, Stream, spread

Read = Callable[[Tensor], tuple[Tensor, Tensor]]
SAMPLES, MOST = 4096, 8192
RIDGES, FOLDS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6), 5


class HeldOut:
    """Rows of both tasks that training never sees, and figures on them.

    Args:
        primary: the primary task's stream.
        harmful: the harmful task's stream, or None.
        rows: held-out rows of the two.
    """

    def __init__(
        self, primary: Stream, harmful: Stream | None, rows: tuple[Rows, Rows | None]
    ) -> None:
        self.primary, self.harmful, self.rows = primary, harmful, rows

    @torch.no_grad()
    def measure(self, read: Read) -> dict[str, Any]:
        """Primary score; κ of both tasks with their rank, ρ, and a ridge probe's score.

        ``read(inputs)`` gives answers and features. κ and ρ are over at most 4096 training
        rows (or four per dimension). Probes are fitted on held-out rows too, as an attacker's
        are: a network that has learned its training rows by heart hides the labels of those alone.
        ``probe_trained`` is what they would read of as many training rows (of all, if fewer).
        """
        answers, labels = self._read(self.primary, spread(self.rows[0], MOST), read, 0)
        kind = self.primary.task.kind
        figures: dict[str, Any] = {"primary": score(answers, labels, kind)}
        if self.harmful is None or self.rows[1] is None:
            return figures
        task = self.harmful.task
        held, held_labels = self._read(self.harmful, spread(self.rows[1], MOST), read, 1)
        size = max(SAMPLES, 4 * held.shape[1])
        seen, seen_labels = self._read(self.harmful, spread(self.harmful.rows, size), read, 1)
        own, _ = self._read(self.primary, spread(self.primary.rows, size), read, 1)
        constant = encode(held_labels, task.kind, task.outputs).mean(0)
        few = spread(torch.arange(len(seen)), len(held))
        moments = gram_of(seen, encode(seen_labels, task.kind, task.outputs))
        spectra = quiet_spectrum(gram_of(own)), quiet_spectrum(moments)
        return figures | {
            "probe": readable(held, held_labels, task.kind, task.outputs),
            "probe_trained": readable(seen[few], seen_labels[few], task.kind, task.outputs),
            "chance": score(constant.expand(len(held), -1), held_labels, task.kind),
            "held": len(held),
            "rho": rho_of_gram(moments),
            "kappa_primary": spectra[0].condition_number if spectra[0].rank else math.nan,
            "kappa_harmful": spectra[1].condition_number if spectra[1].rank else math.nan,
            "rank_primary": spectra[0].rank,
            "rank_harmful": spectra[1].rank,
            "samples": len(seen),
            "dimension": held.shape[1],
        }

    def _read(self, stream: Stream, rows: Rows, read: Read, which: int) -> tuple[Tensor, Tensor]:
        found = [(read(inputs)[which].float().cpu(), y.cpu()) for inputs, y in stream.subset(rows)]
        return torch.cat([z for z, _ in found]), torch.cat([y for _, y in found])


def readable(features: Tensor, labels: Tensor, kind: str, outputs: int) -> float:
    """Score of the best of five ridge probes, every row answered by a probe that never saw it."""
    z, targets = features.double(), encode(labels, kind, outputs)
    answers = [torch.zeros_like(targets) for _ in RIDGES]
    folds = min(FOLDS, len(z))
    for fold in range(folds):
        others = torch.arange(len(z)) % folds != fold
        moments = gram_of(z[others], targets[others])
        for answer, ridge in zip(answers, RIDGES, strict=True):
            weights, bias = ridge_probe(moments, ridge)
            answer[~others] = z[~others] @ weights + bias
    return max(score(answer, labels, kind) for answer in answers)


def by_heart(figures: dict[str, Any]) -> str | None:
    """What to say where held-out rows are plainly more readable than rows that were trained on.

    More readable than chance too: where a probe explains nothing of a sample, those fitted on a
    part of it do worse than chance on the rest.
    """
    held, trained, count = figures["probe"], figures["probe_trained"], figures["held"]
    base = max(trained, figures["chance"])
    noise = math.sqrt(sum(max(p * (1 - p), 0.0) for p in (held, base)) / count)
    if held - base <= 3 * noise:
        return None
    return (
        f"a ridge probe reads {held:.1%} of harmful rows that were held out and {trained:.1%} of "
        "rows that were trained on: the network has learned those by heart. An attacker's rows "
        "are like the former. Train fewer layers or steps, or give more harmful data."
    )


def rir(figures: dict[str, Any], start: dict[str, Any]) -> float:
    """``RIR_θ₀ = (κ_H/κ_H⁰)/(κ_P/κ_P⁰)`` (paper, eq. 11); NaN where features collapsed."""
    return (figures["kappa_harmful"] / start["kappa_harmful"]) / (
        figures["kappa_primary"] / start["kappa_primary"]
    )


def merit(figures: dict[str, Any], start: dict[str, Any], judge: str, tolerance: float) -> float:
    """How good a checkpoint is: the judged figure, or −∞ where the primary task has suffered.

    A checkpoint whose held-out primary score is more than ``tolerance`` below the
    original's is no candidate.
    """
    if judge == "primary":
        return figures["primary"]
    if figures["primary"] < start["primary"] - tolerance:
        return -math.inf
    if judge == "probe":
        return -figures["probe"]
    ratio = rir(figures, start)
    return math.log(ratio) if ratio > 0 else -math.inf
