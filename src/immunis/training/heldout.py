"""How far a defence has come, on rows it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from immunis.core.errors import NumericalError
from immunis.data.loader import Rows, Stream, spread
from immunis.data.task import target_matrix
from immunis.theory.gram import gram_of
from immunis.theory.rho import rho_of_gram
from immunis.theory.scores import score
from immunis.theory.spectrum import quiet_spectrum
from immunis.training.selection import read_by_probes

Read = Callable[[Tensor], tuple[Tensor, Tensor]]
SAMPLES, MOST = 4096, 8192


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
        """Primary score; κ of both tasks with their rank, ρ, and what probes read.

        ``read(inputs)`` gives answers and features. κ and ρ are over at most 4096 training
        rows (or four per dimension).

        Raises:
            NumericalError: if features are not finite.
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
        moments = gram_of(seen, target_matrix(seen_labels, task.kind, task.outputs))
        spectra = quiet_spectrum(gram_of(own)), quiet_spectrum(moments)
        return figures | {
            **read_by_probes((seen, seen_labels), (held, held_labels), task.kind, task.outputs),
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
        values = torch.cat([z for z, _ in found])
        if which and not bool(torch.isfinite(values).all()):
            raise NumericalError(f"the features of {stream.task.name} are not finite")
        return values, torch.cat([y for _, y in found])
