"""The record of a defence: what it changed, measured on the model as it is returned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from immunis.core.records import Record
from immunis.data.loader import PER_DIMENSION, SAMPLES, Stream, spread
from immunis.data.task import Task, target_matrix
from immunis.data.text import is_text
from immunis.methods.kept_primary import primary_kept
from immunis.models.cut import Cut
from immunis.theory.definition import TOLERANCE, definition
from immunis.theory.frontier import ceiling, ceilings
from immunis.theory.gram import Gram, as_extractor, gram_of_blocks, paired_grams
from immunis.theory.measure import data_figures, spectrum_figures
from immunis.theory.probes import rho_of_gram
from immunis.theory.retrieval import retrieval
from immunis.theory.rir import (
    RelativeImmunizationRatio,
    relative_immunization_ratio,
    rir_of_spectra,
)
from immunis.theory.scores import answers, class_scores, row_hits, score_of
from immunis.theory.spectrum import quiet_spectrum
from immunis.training.paired import fall, primary_hits
from immunis.training.settings import Hardware, Training

BATCH = 256
NORMAL = 1.96  # standard errors on either side of a 95% interval


class Scores(NamedTuple):
    """Scores of the whole task and of each class, and how each row was answered."""

    whole: float | None
    classes: list[float]
    hits: np.ndarray


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

    pairs = [(as_extractor(model), head) for model, head in (before, after)]

    def both(inputs: Tensor) -> Tensor:
        found = [head(extract(inputs).to(head.weight)).double() for extract, head in pairs]
        return torch.stack(found, 1)

    extract = [partial(answers, as_extractor(model), features[0]) for model in (old, new)]
    reach, against = ceilings(*grams[0]), relative_immunization_ratio(new, *features)
    return _record(
        run,
        relative_immunization_ratio(new, *features, reference=old),
        [_rho(harmful) for _, harmful in grams],
        _scores(*answers(both, features[0]), features[0]),
        against,
        ceiling=reach.rir,
        shared_ceiling=reach.shared,
        rir_against_inputs=against.figures,
        # what linear maps of the inputs can do does not bound an affine extractor
        ceiling_against_inputs=None if affine else ceiling(*paired_grams(*features)),
        exact_head=exact,
        **_near(run.tasks[0], extract),
    )


def network_record(
    run: Run, before: Cut, after: Cut, plain: Cut | None, training: Training, hardware: Hardware
) -> Record:
    """Measure a trained network: RIR_θ₀ (paper, eq. 11), ρ, the primary score and its price.

    ``plain`` is the same training without the defence, if there was one.
    """
    workers = training.workers
    cuts = [placed(whole, hardware) for whole in (before, after)]
    price = (
        {} if plain is None else _price(run.tasks[0], placed(plain, hardware), cuts[1], training)
    )
    grams = [[feature_gram(whole, task, workers) for task in run.tasks] for whole in cuts]
    (p_old, h_old), (p_new, h_new) = ([quiet_spectrum(g) for g in pair] for pair in grams)
    change = rir_of_spectra({"primary": (p_old, p_new), "harmful": (h_old, h_new)})
    return _record(
        run,
        change,
        [_rho(harmful) for _, harmful in grams],
        _network_scores(cuts, run.tasks[0], workers),
        change,
        details={
            **run.details,
            **price,
            "skipped": {t.name: sorted(t.train.corrupt) for t in run.tasks},
        },
        **_near(run.tasks[0], [partial(_read, w, w.features, run.tasks[0], workers) for w in cuts]),
    )


def placed(whole: Cut, hardware: Hardware) -> Cut:
    """Return a network where it is measured: on CUDA, if there is one and it may be used."""
    cuda = hardware.device != "cpu" and torch.cuda.is_available()
    return whole.on("cuda" if cuda else "cpu")


def _price(primary: Task, plain: Cut, after: Cut, training: Training) -> dict[str, Any]:
    """Return the primary score against that of the same training without the defence.

    The 95% interval is over the rows, which both answered.
    """
    hits = [primary_hits(whole, primary, training, held=False) for whole in (plain, after)]
    lost, error = fall(*hits)
    ends = (-lost - NORMAL * error, -lost + NORMAL * error)
    price = {"plain": score_of(hits[0]), "mean": -lost, "low": ends[0], "high": ends[1]}
    return {"price": {**price, "rows": len(hits[0])}}


def _record(
    run: Run,
    change: RelativeImmunizationRatio,
    rhos: Sequence[float | None],
    scores: Sequence[Scores],
    defining: RelativeImmunizationRatio,
    **more: Any,
) -> Record:
    """Return the record of a run; ``rhos`` and ``scores`` are those before and after.

    ``defining`` has the factors that Definition 3.1 asks about.
    """
    primary, harmful = run.tasks
    totals, classes, hits = zip(*scores, strict=True)
    tolerance = run.settings.get("training", {}).get("tolerance", TOLERANCE)
    figures = {
        "rir": change.figures,
        "definition": definition(defining, totals, tolerance).figures,
        "ceiling": None,  # known for linear extractors only, like the next two
        "rir_against_inputs": None,
        "ceiling_against_inputs": None,
        "rho": _pair(rhos),
        "primary_score": {
            **_pair(totals),
            "split": "test" if primary.test else "train",
            **primary_kept(totals[0], totals[1], hits, tolerance),
        },
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


def _scores(predictions: Tensor, labels: Tensor, task: Task) -> list[Scores]:
    """Return the scores before and after, from predictions (n, 2, outputs) of the same rows.

    The whole score is None for a single class, where every answer is right.
    """
    found, classes = [], task.kind == "classification"
    for one in predictions.unbind(1):
        hits = row_hits(one, labels, task.kind)
        whole = None if classes and task.outputs == 1 else score_of(hits)
        each = class_scores(one.argmax(1), labels, task.outputs) if classes else []
        found.append(Scores(whole, each, hits.numpy()))
    return found


@torch.no_grad()
def feature_gram(whole: Cut, task: Task, workers: int = 0) -> Gram:
    """Stream the moments of a network's features over a task's training data.

    At most 16,384 samples are read, or eight per feature, evenly spread over the data.
    """
    stream = Stream(task, BATCH, device=whole.example.device, workers=workers)
    rows = spread(stream.rows, max(SAMPLES, PER_DIMENSION * whole.width))
    return gram_of_blocks(
        (whole.features(x).float().cpu(), target_matrix(y.cpu(), task.kind, task.outputs))
        for x, y in stream.subset(rows, BATCH)
    )


def _network_scores(cuts: Sequence[Cut], task: Task, workers: int) -> list[Scores]:
    """Return scores of two models' own answers, on training data if there is no test data."""

    def both(x: Tensor) -> Tensor:
        return torch.stack([whole.answers(x) for whole in cuts], 1)

    return _scores(*_read(cuts[0], both, task, workers), task)


@torch.no_grad()
def _read(
    whole: Cut, call: Callable[[Tensor], Tensor], task: Task, workers: int
) -> tuple[Tensor, Tensor]:
    """Return what a call gives of the test inputs (training, if there are none), and the labels."""
    split, device = task.test or task.train, whole.example.device
    stream = Stream(task, BATCH, split=split, device=device, workers=workers)
    rows = stream.subset(stream.rows, BATCH)
    parts = [(call(x).float().cpu(), y.cpu()) for x, y in rows]
    found, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    return found, labels


def _near(task: Task, read: Sequence[Callable[[], tuple[Tensor, Tensor]]]) -> dict[str, Any]:
    """Return how often a test text's nearest one is of its class, before and after."""
    if task.test is None or task.kind != "classification" or not is_text(task.test.first(1)):
        return {}
    return {"retrieval": _pair(retrieval(*features()) for features in read)}
