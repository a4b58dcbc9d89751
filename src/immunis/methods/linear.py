"""A linear defence as a record: what it changed, measured on the layer as it was returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.records import Record
from immunis.data.task import Task
from immunis.theory.gram import gram
from immunis.theory.guarantees import ceiling
from immunis.theory.measure import data_figures, paired_grams, spectrum_figures
from immunis.theory.metrics import (
    RelativeImmunizationRatio,
    as_extractor,
    class_scores,
    relative_immunization_ratio,
    score,
)
from immunis.theory.rho import rho_of_gram


@dataclass(frozen=True)
class LinearRun:
    """What a record is made from: copies, so that it stays true whatever becomes of the layer."""

    model: nn.Linear | Tensor
    layer: nn.Linear
    old_head: nn.Linear
    new_head: nn.Linear
    exact: bool
    tasks: tuple[Task, Task]
    method: str
    settings: Mapping[str, Any]
    details: Mapping[str, Any]
    seed: int
    seconds: float
    given: tuple[Task, Task] | None = None  # as the user gave them, where features stand for them

    def record(self) -> Record:
        """Measure the run: against the given extractor, and against the inputs (paper, eq. 9)."""
        (primary, harmful), given = self.tasks, self.given or self.tasks
        old, new = as_extractor(self.model), as_extractor(self.layer)
        change = relative_immunization_ratio(self.layer, primary, harmful, reference=self.model)
        inputs = relative_immunization_ratio(self.layer, primary, harmful)
        affine = isinstance(self.model, nn.Linear) and self.model.bias is not None
        return Record(
            kind="immunize",
            name=f"{primary.name} / {harmful.name}: {self.method}",
            figures={
                "rir": _ratio_figures(change),
                "ceiling": ceiling(*paired_grams(primary, harmful, old)),
                "rir_against_inputs": _ratio_figures(inputs),
                # an affine extractor is not bounded by what linear maps of the inputs can do
                "ceiling_against_inputs": (
                    None if affine else ceiling(*paired_grams(primary, harmful))
                ),
                "rho": {"before": _rho(harmful, old), "after": _rho(harmful, new)},
                "primary_score": {
                    "before": _score(old, self.old_head, primary),
                    "after": _score(new, self.new_head, primary),
                    "split": "test" if primary.test else "train",
                },
                "per_class": {
                    "classes": primary.class_names,
                    "before": _class_scores(old, self.old_head, primary),
                    "after": _class_scores(new, self.new_head, primary),
                },
                "exact_head": self.exact,
                "spectra": {
                    role: {"before": spectrum_figures(pair[0]), "after": spectrum_figures(pair[1])}
                    for role, pair in change.spectra.items()
                },
                "details": self.details,
            },
            settings={"method": self.method, **self.settings},
            data=data_figures(**dict(zip(("primary", "harmful"), given, strict=True))),
            seed=self.seed,
            seconds=self.seconds,
        )


def _ratio_figures(ratio: RelativeImmunizationRatio) -> dict[str, float]:
    return {"harmful": ratio.harmful, "primary": ratio.primary, "value": ratio.value}


def _rho(task: Task, extractor: Callable[[Tensor], Tensor]) -> float | None:
    """ρ of the task's labels; None where they are constant."""
    moments = gram(task, extractor)
    return rho_of_gram(moments) if float(moments.target_scatter.trace()) > 0 else None


def _score(extractor: Callable[[Tensor], Tensor], head: nn.Linear, task: Task) -> float | None:
    """Accuracy or R² of a head; None for a single class, where it would always be right."""
    if task.kind == "classification" and task.outputs < 2:
        return None
    return score(lambda inputs: head(extractor(inputs).to(head.weight)), task)


def _class_scores(
    extractor: Callable[[Tensor], Tensor], head: nn.Linear, task: Task
) -> list[float]:
    """Accuracy on each class; empty for regression."""
    if task.kind == "regression":
        return []
    split = task.test or task.train
    pairs = [(head(extractor(x).to(head.weight)).argmax(1), y) for x, y in split.batches()]
    guesses, labels = (torch.cat(column) for column in zip(*pairs, strict=True))
    return class_scores(guesses, task.positions(labels), task.outputs)
