"""What is known of a model without attacking it: primary score, κ, RIR, ρ, and if it is broken."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from immunis.attacks.contract import Samples
from immunis.audits.feature_cache import Reader, array_of, chance_of, samples_of
from immunis.core.errors import RankWarning
from immunis.data.loader import PER_DIMENSION, SAMPLES, spread
from immunis.data.task import Task, target_matrix
from immunis.models.cut import Cut
from immunis.theory.frontier import ceiling
from immunis.theory.gram import Gram, gram_of
from immunis.theory.measure import spectrum_outline
from immunis.theory.rho import rho_of_gram
from immunis.theory.ridge import ridge_probe
from immunis.theory.rir import rir
from immunis.theory.scores import class_scores, score
from immunis.theory.spectrum import Spectrum

BROKEN = 0.1  # share of the original's primary score above chance below which a model is broken


def describe(
    cuts: Mapping[str, Sequence[Cut]],
    primary: Task,
    harmful: Samples,
    reader: Reader,
    original: str,
) -> dict[str, Any]:
    """Primary score, κ, RIR against the original and ρ of every model.

    κ of the primary task is over at most 16,384 samples, or eight per dimension, evenly spread.
    A model in several variants is described by their means (geometric for κ), its spectra by
    those of the first, and each of them beside it.

    Of the original ``ceiling`` is kept too: the RIR that no linear map of its features can pass.
    """
    held = samples_of(primary) if primary.test is not None else None
    inputs, labels = primary.train.tensors()
    width = max(model.width for of in cuts.values() for model in of)
    chosen = spread(torch.arange(len(inputs)), max(SAMPLES, PER_DIMENSION * width))
    inputs, targets = inputs[chosen], primary.targets(labels[chosen])
    chance = chance_of(held) if held is not None else 0.0
    rows: dict[tuple[str, int], Any] = {}
    variants = {(name, i): model for name, of in cuts.items() for i, model in enumerate(of)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)  # ranks are reported
        for (name, number), model in variants.items():
            train = torch.from_numpy(reader.features(name, model, array_of(inputs)))
            moments = gram_of(train, targets)
            features, _ = reader.read(name, model, harmful, "")
            labels_h = torch.from_numpy(np.array(harmful.train.labels))
            targets_h = target_matrix(labels_h, harmful.kind, harmful.outputs)
            attacked = gram_of(torch.from_numpy(features), targets_h)
            spectra = Spectrum.of(moments), Spectrum.of(attacked)
            outline: dict[str, Any] = {
                "spectra": {
                    role: spectrum_outline(s)
                    for role, s in zip(("primary", "harmful"), spectra, strict=True)
                }
            }
            if name == original and min(s.rank for s in spectra):
                outline["ceiling"] = ceiling(moments, attacked)
            rows[name, number] = {
                **_primary_scores(name, model, moments, held, reader),
                "kappa_primary": _kappa(spectra[0]),
                "kappa_harmful": _kappa(spectra[1]),
                "rank_primary": spectra[0].rank,
                "rank_harmful": spectra[1].rank,
                "dimension": spectra[0].dimension,
                "rho": rho_of_gram(attacked),
                **outline,
            }
    merged = {name: _merged([rows[name, i] for i in range(len(of))]) for name, of in cuts.items()}
    base = merged[original]
    for row in (*merged.values(), *rows.values()):
        row["rir"] = rir(
            primary=(base["kappa_primary"], row["kappa_primary"]),
            harmful=(base["kappa_harmful"], row["kappa_harmful"]),
        ).value
        bar = chance + BROKEN * (base["primary"] - chance) if base["primary"] is not None else None
        row["broken"] = bar is not None and row["primary"] <= bar
    for name, of in cuts.items():
        if len(of) > 1:
            merged[name]["variants"] = [_brief(rows[name, i]) for i in range(len(of))]
            merged[name]["broken"] = any(row["broken"] for row in merged[name]["variants"])
    return merged


def _merged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row for several variants of a model."""
    found = dict(rows[0])
    for key in ("kappa_primary", "kappa_harmful"):
        found[key] = math.exp(sum(math.log(row[key]) for row in rows) / len(rows))
    for key in ("primary", "rho"):
        values = [row[key] for row in rows]
        found[key] = None if None in values else sum(values) / len(values)
    if "per_class" in found:
        columns = zip(*(row["per_class"] for row in rows), strict=True)
        found["per_class"] = [round(sum(column) / len(rows), 4) for column in columns]
    return found


def _brief(row: Mapping[str, Any]) -> dict[str, Any]:
    """A variant's figures, without its lists."""
    return {key: row[key] for key in row if key not in ("spectra", "per_class", "ceiling")}


def _kappa(spectrum: Spectrum) -> float:
    """κ, or NaN where features have collapsed to nothing."""
    return spectrum.condition_number if spectrum.rank else math.nan


def _primary_scores(
    name: str, model: Cut, moments: Gram, held: Samples | None, reader: Reader
) -> dict[str, Any]:
    """Test score of the model's own answers, or of a ridge head where it has none; by class."""
    if held is None:
        return {"primary": None}
    if model.head is not None:
        outputs = torch.from_numpy(reader.answers(name, model, held.test.inputs))
    else:
        features = torch.from_numpy(reader.features(name, model, held.test.inputs))
        weights, bias = ridge_probe(moments)
        outputs = features.double() @ weights + bias
    labels = torch.from_numpy(np.array(held.test.labels))
    found: dict[str, Any] = {"primary": score(outputs, labels, held.kind)}
    if held.kind == "classification":
        found["per_class"] = class_scores(outputs.argmax(1), labels, held.outputs)
    return found
