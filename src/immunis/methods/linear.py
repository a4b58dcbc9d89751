"""A linear defence as a record: what it changed, measured on the layer as it was returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from immunis.core.records import Record
from immunis.data.task import Task
from immunis.theory.frontier import ceiling
from immunis.theory.gram import as_extractor, gram, paired_grams
from immunis.theory.measure import data_figures, spectrum_figures
from immunis.theory.rho import rho_of_gram
from immunis.theory.rir import relative_immunization_ratio
from immunis.theory.scores import answers, class_scores, score


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
        scores = {
            "before": _scores(old, self.old_head, primary),
            "after": _scores(new, self.new_head, primary),
        }
        affine = isinstance(self.model, nn.Linear) and self.model.bias is not None
        return Record(
            kind="immunize",
            name=f"{primary.name} / {harmful.name}: {self.method}",
            figures={
                "rir": change.figures,
                "ceiling": ceiling(*paired_grams(primary, harmful, old)),
                "rir_against_inputs": inputs.figures,
                # an affine extractor is not bounded by what linear maps of the inputs can do
                "ceiling_against_inputs": (
                    None if affine else ceiling(*paired_grams(primary, harmful))
                ),
                "rho": {"before": _rho(harmful, old), "after": _rho(harmful, new)},
                "primary_score": {
                    **{when: found[0] for when, found in scores.items()},
                    "split": "test" if primary.test else "train",
                },
                "per_class": {
                    "classes": primary.class_names,
                    **{when: found[1] for when, found in scores.items()},
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


def _rho(task: Task, extractor: Callable[[Tensor], Tensor]) -> float | None:
    """ρ of the task's labels; None where they are constant."""
    moments = gram(task, extractor)
    return rho_of_gram(moments) if float(moments.target_scatter.trace()) > 0 else None


def _scores(
    extractor: Callable[[Tensor], Tensor], head: nn.Linear, task: Task
) -> tuple[float | None, list[float]]:
    """Score of a head (None for a single class, which is always right), and accuracy by class."""
    found, labels = answers(lambda inputs: head(extractor(inputs).to(head.weight)), task)
    if task.kind == "regression":
        return score(found, labels, task.kind), []
    by_class = class_scores(found.argmax(1), labels, task.outputs)
    return score(found, labels, task.kind) if task.outputs > 1 else None, by_class
