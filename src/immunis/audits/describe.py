"""What is known of a model without an attack: primary score, κ, RIR, ρ, and if it is broken."""

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

ROLES = ("primary", "harmful")
BROKEN = 0.1  # share of the original's primary score above chance below which a model is broken


def describe(
    cuts: Mapping[str, Sequence[Cut]],
    primary: Task,
    harmful: Samples,
    reader: Reader,
    original: str,
) -> dict[str, Any]:
    """Return primary score, κ, RIR against the original and ρ of every model, by name.

    κ of the primary task is over at most 16,384 samples, or eight per dimension, evenly spread.
    A model with several variants is described by their means (geometric for κ) and the spectra
    of the first; each variant stands beside it. The original also has its ``ceiling``: the RIR
    that no linear map of its features can pass.
    """
    held = samples_of(primary) if primary.test is not None else None
    inputs, labels = primary.train.tensors()
    width = max(model.width for of in cuts.values() for model in of)
    chosen = spread(torch.arange(len(inputs)), max(SAMPLES, PER_DIMENSION * width))
    inputs, targets = inputs[chosen], primary.targets(labels[chosen])
    positions = torch.from_numpy(np.array(harmful.train.labels))
    harmful_targets = target_matrix(positions, harmful.kind, harmful.outputs)

    def figures(name: str, model: Cut) -> dict[str, Any]:
        train = torch.from_numpy(reader.features(name, model, array_of(inputs)))
        attacked = torch.from_numpy(reader.read(name, model, harmful, "")[0])
        grams = {"primary": gram_of(train, targets), "harmful": gram_of(attacked, harmful_targets)}
        spectra = {role: Spectrum.of(gram) for role, gram in grams.items()}
        row = _primary_scores(name, model, grams["primary"], held, reader)
        for role, spectrum in spectra.items():  # κ is NaN where features collapse to nothing
            row[f"kappa_{role}"] = spectrum.condition_number if spectrum.rank else math.nan
            row[f"rank_{role}"] = spectrum.rank
        row |= {
            "dimension": spectra["primary"].dimension,
            "rho": rho_of_gram(grams["harmful"]),
            "spectra": {role: spectrum_outline(spectrum) for role, spectrum in spectra.items()},
        }
        if name == original and all(spectrum.rank for spectrum in spectra.values()):
            row["ceiling"] = ceiling(grams["primary"], grams["harmful"])
        return row

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)  # ranks are reported
        rows = {name: [figures(name, model) for model in of] for name, of in cuts.items()}
    merged = {name: _merged(of) for name, of in rows.items()}
    base, chance = merged[original], chance_of(held) if held is not None else 0.0
    for row in (*merged.values(), *(row for of in rows.values() for row in of)):
        pairs = {role: (base[f"kappa_{role}"], row[f"kappa_{role}"]) for role in ROLES}
        row["rir"] = rir(**pairs).value
        known = base["primary"] is not None
        row["broken"] = known and row["primary"] <= chance + BROKEN * (base["primary"] - chance)
    for name, of in rows.items():
        if len(of) > 1:
            lists = ("spectra", "per_class", "ceiling")
            variants = [{k: v for k, v in row.items() if k not in lists} for row in of]
            broken = any(row["broken"] for row in variants)
            merged[name] |= {"variants": variants, "broken": broken}
    return merged


def _merged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one row for the variants of a model."""
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


def _primary_scores(
    name: str, model: Cut, moments: Gram, held: Samples | None, reader: Reader
) -> dict[str, Any]:
    """Return the test score, also by class, of the model's own head, or else of a ridge head."""
    if held is None:
        return {"primary": None}
    if model.head is not None:
        outputs = torch.from_numpy(reader.answers(name, model, held.test.inputs))
    else:
        weights, bias = ridge_probe(moments)
        features = torch.from_numpy(reader.features(name, model, held.test.inputs))
        outputs = features.double() @ weights + bias
    labels = torch.from_numpy(np.array(held.test.labels))
    found: dict[str, Any] = {"primary": score(outputs, labels, held.kind)}
    if held.kind == "classification":
        found["per_class"] = class_scores(outputs.argmax(1), labels, held.outputs)
    return found
