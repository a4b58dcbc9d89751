"""The record of a defence: what it changed, measured on the model as it is returned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.records import Record
from immunis.data.loader import PER_DIMENSION, SAMPLES, Stream, spread
from immunis.data.task import Task, target_matrix
from immunis.models.cut import Cut
from immunis.theory.frontier import ceiling
from immunis.theory.gram import Gram, as_extractor, gram_of, paired_grams
from immunis.theory.measure import data_figures, spectrum_figures
from immunis.theory.rho import rho_of_gram
from immunis.theory.rir import RelativeImmunizationRatio, relative_immunization_ratio, rir
from immunis.theory.scores import answers, class_scores, score
from immunis.theory.spectrum import quiet_spectrum

BATCH = 256
Scores = tuple[float | None, list[float]]  # of the whole task, and of each class


@dataclass(frozen=True)
class Run:
    """A finished defence: what its record says beside what is measured."""

    tasks: tuple[Task, Task]
    settings: Mapping[str, Any]
    details: Mapping[str, Any]
    seed: int
    seconds: float


def linear_record(
    run: Run,
    features: tuple[Task, Task],
    before: tuple[nn.Linear | Tensor, nn.Linear],
    after: tuple[nn.Linear, nn.Linear],
    exact: bool,
) -> Record:
    """Measure a linear extractor and its head against those before, and against its inputs.

    ``features`` are the tasks that the extractor reads: those given or, for a network into which
    a map is folded, its features of them (paper, eq. 9).
    """
    old, new = before[0], after[0]
    affine = isinstance(old, nn.Linear) and old.bias is not None
    grams = [paired_grams(*features, as_extractor(model)) for model in (old, new)]

    def scores(model: nn.Linear | Tensor, head: nn.Linear) -> Scores:
        extract = as_extractor(model)
        found = answers(lambda x: head(extract(x).to(head.weight)), features[0])
        return _scores(*found, features[0])

    return _record(
        run,
        relative_immunization_ratio(new, *features, reference=old),
        [_rho(harmful) for _, harmful in grams],
        [scores(*pair) for pair in (before, after)],
        ceiling=ceiling(*grams[0]),
        rir_against_inputs=relative_immunization_ratio(new, *features).figures,
        # what linear maps of the inputs can do does not bound an affine extractor
        ceiling_against_inputs=None if affine else ceiling(*paired_grams(*features)),
        exact_head=exact,
    )


def network_record(run: Run, before: Cut, after: Cut) -> Record:
    """Measure a trained network: RIR_θ₀ (paper, eq. 11), ρ and the primary score."""
    cuda = run.settings["hardware"]["device"] != "cpu" and torch.cuda.is_available()
    workers = run.settings["training"]["workers"]
    cuts = [whole.on("cuda" if cuda else "cpu") for whole in (before, after)]
    grams = [[feature_gram(whole, task, workers) for task in run.tasks] for whole in cuts]
    (p_old, h_old), (p_new, h_new) = ([quiet_spectrum(g) for g in pair] for pair in grams)
    spectra = {"primary": (p_old, p_new), "harmful": (h_old, h_new)}
    change = rir(**{k: (a.condition_number, b.condition_number) for k, (a, b) in spectra.items()})
    return _record(
        run,
        replace(change, spectra=spectra),
        [_rho(harmful) for _, harmful in grams],
        [_network_scores(whole, run.tasks[0], workers) for whole in cuts],
        details={**run.details, "skipped": {t.name: sorted(t.train.corrupt) for t in run.tasks}},
    )


def _record(
    run: Run,
    change: RelativeImmunizationRatio,
    rhos: Sequence[float | None],
    scores: Sequence[Scores],
    **more: Any,
) -> Record:
    """Return the record of a run; ``rhos`` and ``scores`` are those before and after."""
    primary, harmful = run.tasks
    totals, classes = zip(*scores, strict=True)
    figures = {
        "rir": change.figures,
        "ceiling": None,  # known for linear extractors only, like the next two
        "rir_against_inputs": None,
        "ceiling_against_inputs": None,
        "rho": _pair(rhos),
        "primary_score": {**_pair(totals), "split": "test" if primary.test else "train"},
        "per_class": {"classes": primary.class_names, **_pair(classes)},
        "exact_head": False,
        "spectra": {k: _pair(map(spectrum_figures, v)) for k, v in change.spectra.items()},
        "details": run.details,
    }
    return Record(
        kind="immunize",
        name=f"{primary.name} / {harmful.name}: {run.settings['method']}",
        figures={**figures, **more},
        settings=run.settings,
        data=data_figures(primary=primary, harmful=harmful),
        seed=run.seed,
        seconds=run.seconds,
    )


def _pair(values: Iterable[Any]) -> dict[str, Any]:
    return dict(zip(("before", "after"), values, strict=True))


def _rho(moments: Gram) -> float | None:
    """ρ of the labels; None if they are constant."""
    return rho_of_gram(moments) if float(moments.target_scatter.trace()) > 0 else None


def _scores(predictions: Tensor, labels: Tensor, task: Task) -> Scores:
    """Scores of predictions; None for a single class, where every answer is right."""
    if task.kind == "regression":
        return score(predictions, labels, task.kind), []
    total = score(predictions, labels, task.kind) if task.outputs > 1 else None
    return total, class_scores(predictions.argmax(1), labels, task.outputs)


@torch.no_grad()
def feature_gram(whole: Cut, task: Task, workers: int = 0) -> Gram:
    """Stream the moments of a network's features over a task's training data.

    At most 16,384 samples are read, or eight per feature, evenly spread over the data.
    """
    stream = Stream(task, BATCH, device=whole.example.device, workers=workers)
    rows = spread(stream.rows, max(SAMPLES, PER_DIMENSION * whole.width))
    blocks = (
        (whole.features(x).float().cpu(), target_matrix(y.cpu(), task.kind, task.outputs))
        for x, y in stream.subset(rows, BATCH)
    )
    total = gram_of(*next(blocks))
    for block in blocks:
        total.add(*block)
    return total


@torch.no_grad()
def _network_scores(whole: Cut, task: Task, workers: int) -> Scores:
    """Scores of the model's own answers, on training data if there is no test data."""
    split, device = task.test or task.train, whole.example.device
    stream = Stream(task, BATCH, split=split, device=device, workers=workers)
    rows = stream.subset(stream.rows, BATCH)
    parts = [(whole.answers(x).float().cpu(), y.cpu()) for x, y in rows]
    predictions, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    return _scores(predictions, labels, task)
