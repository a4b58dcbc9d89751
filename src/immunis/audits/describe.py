"""What is known of a model without an attack: features, primary score, κ, RIR, ρ."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from immunis.attacks.arrays import NUMBERS, Samples, array_of, data_of, tensor
from immunis.attacks.contract import count_flops
from immunis.core.disk_arrays import MEMORY, Memory, blocks
from immunis.core.errors import InputError
from immunis.core.hashing import state_digest
from immunis.core.packing import packed, unpacked
from immunis.data.loader import PER_DIMENSION, SAMPLES, spread
from immunis.data.task import Task, target_matrix
from immunis.data.text import is_packed, is_text
from immunis.methods.kept_primary import primary_kept
from immunis.models.cut import Cut
from immunis.models.joined import extractor_of
from immunis.models.positions import MAPS
from immunis.theory.definition import definition
from immunis.theory.feature_maps import principal_directions
from immunis.theory.frontier import ceilings
from immunis.theory.gram import Gram, gram_of
from immunis.theory.measure import spectrum_outline
from immunis.theory.probes import rho_of_gram, ridge_probe
from immunis.theory.retrieval import retrieval
from immunis.theory.rir import rir
from immunis.theory.scores import class_scores, row_hits, score_of
from immunis.theory.spectrum import quiet_spectrum

ROLES = ("primary", "harmful")
WIDE, DIRECTIONS = 2048, 1024  # wider maps are projected on so many directions of as many rows
MOST = 2**28  # numbers of these rows in memory: a gigabyte
Project = Callable[[Tensor], Tensor]


class Reader:
    """Read features once for each model and layer, in batches that fit, and shelve large ones."""

    def __init__(self, example: Tensor, shelf: Memory = MEMORY) -> None:
        self.example, self.batch = example, 512
        self._shelf = shelf
        self._cache: dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray]] = {}
        self._digests: dict[Cut | Samples, str] = {}
        self._flops: dict[str, float] = {}

    def digest(self, model: Cut) -> str:
        """Return a hash of a model's structure, its weights, and its features of a few inputs.

        The features tell models apart that differ in hooks or plain attributes only.
        """
        if model not in self._digests:
            text = repr((model.model, model.head)) + state_digest(model.model)
            features = array_of(self._forward(model, self.example, "")).tobytes()
            self._digests[model] = sha256(text.encode() + features).hexdigest()
        return self._digests[model]

    def digest_data(self, task: Samples) -> str:
        """Return a hash of a task's arrays."""
        if task not in self._digests:
            total = sha256(f"{task.kind} {task.outputs}".encode())
            for part in (task.train, task.test):
                for block in blocks(part.inputs):
                    total.update(np.ascontiguousarray(block).data)
                total.update(part.labels.tobytes())
            self._digests[task] = total.hexdigest()
        return self._digests[task]

    def flops(self, model: Cut, task: Samples) -> float:
        """Return the operations of reading one sample."""
        key = self.digest(model)
        if key not in self._flops:
            one = tensor(task.train.inputs[:1])
            self._flops[key] = count_flops(lambda: self._forward(model, one, ""))[1]
        return self._flops[key]

    def read(self, name: str, model: Cut, task: Samples, layer: str) -> tuple[Any, Any]:
        """Return the features of a task's training and test inputs at a layer.

        Wide un-pooled maps are projected on principal directions of the training rows.
        """
        key = (self.digest(model), self.digest_data(task), layer)
        if key not in self._cache:
            both = (task.train.inputs, task.test.inputs)
            few = self._projection(name, model, task.train.inputs, layer)
            found = (self.features(name, model, inputs, layer, few) for inputs in both)
            train, test = map(self._shelf.put, found)
            self._cache[key] = train, test
        return self._cache[key]

    def _projection(self, name: str, model: Cut, inputs: np.ndarray, layer: str) -> Project:
        """Return what makes wide maps narrow: principal directions of evenly spread rows."""
        width = self._forward(model, self.example, layer).shape[1] if layer.endswith(MAPS) else 0
        if width <= WIDE:
            return lambda z: z
        chosen = spread(torch.arange(len(inputs)), min(WIDE, max(DIRECTIONS, MOST // width)))
        rows = self.features(name, model, inputs[chosen.numpy()], layer)
        device = model.example.device
        found = torch.from_numpy(rows).to("cpu" if device.type == "mps" else device)
        mean, directions = (part.to(device) for part in principal_directions(found, DIRECTIONS))
        return lambda z: (z.to(mean) - mean) @ directions

    def features(
        self,
        name: str,
        model: Cut,
        inputs: np.ndarray,
        layer: str = "",
        project: Project = lambda z: z,
    ) -> np.ndarray:
        """Return the features of some inputs at a layer; raise InputError if any is not finite."""
        found = self._in_batches(name, inputs, lambda x: project(self._forward(model, x, layer)))
        if not np.isfinite(found).all():
            raise InputError(
                f"{name} gives NaN or infinite features at layer {layer or 'features'}; it cannot "
                "be audited. Check its weights and the scale of its inputs."
            )
        return found

    @torch.no_grad()
    def answers(self, name: str, model: Cut, inputs: np.ndarray) -> np.ndarray:
        """Return what the model itself answers to some inputs."""
        return self._in_batches(name, inputs, model.answers)

    def _in_batches(
        self, name: str, inputs: np.ndarray, call: Callable[[Tensor], Tensor]
    ) -> np.ndarray:
        """Join the results of a call; halve the batch when memory runs out.

        Texts are read in the order of their length, so that little of a batch is padding.
        """
        rows = tensor(inputs)
        order = rows[:, 1].sum(1).argsort() if is_packed(rows) else None
        self.batch = max(1, min(self.batch, NUMBERS // max(1, rows[:1].numel())))
        while True:
            try:
                if order is None:
                    parts = rows.split(self.batch)
                    return array_of(torch.cat([call(part).cpu() for part in parts]))
                parts = order.split(self.batch)
                found = torch.cat([call(rows[part]).cpu() for part in parts])
                return array_of(found[order.argsort()])
            except (MemoryError, torch.OutOfMemoryError):
                if self.batch == 1:
                    raise
                self.batch //= 2
                warnings.warn(
                    f"out of memory while reading {name}; continuing with batches of {self.batch}.",
                    stacklevel=3,
                )

    @torch.no_grad()
    def _forward(self, model: Cut, inputs: Tensor, layer: str) -> Tensor:
        return model.features(inputs, layer)


def describe(
    cuts: Mapping[str, Sequence[Cut]],
    origins: Mapping[str, Sequence[int]],
    primary: Task,
    public: Samples | None,
    harmful: Samples,
    transfer: Mapping[str, Samples],
    reader: Reader,
    shelf: Memory,
    original: str,
    tolerance: float,
) -> dict[str, Any]:
    """Return primary score, κ, RIR and Definition 3.1 against the original, and ρ, by model.

    ``public`` is the primary task as arrays, if it has test data. κ of the primary task is over at
    most 16,384 samples, or eight per dimension, evenly spread. Of text there is also how its tokens
    are pooled, and how well test rows find their like (``retrieval``), also those of each harmless
    task in ``transfer``, which nobody trained on. A model with variants is
    described by their means (geometric for κ) and the spectra of the first; each variant stands
    beside it, compared with the original that it was made from (``origins``). The original also has
    its ``ceiling``: the RIR that no linear map of its features can pass. A model is ``broken`` if
    its primary score fell too far (``methods.kept_primary``), given the ``tolerance``.
    """
    train = data_of(primary, primary.train, shelf) if public is None else public.train
    width = max(model.width for of in cuts.values() for model in of)
    chosen = spread(torch.arange(len(train.labels)), max(SAMPLES, PER_DIMENSION * width)).numpy()
    inputs, labels = shelf.take(train.inputs, chosen), tensor(train.labels[chosen])
    targets = target_matrix(labels, primary.kind, primary.outputs)
    positions = torch.from_numpy(np.array(harmful.train.labels))
    harmful_targets = target_matrix(positions, harmful.kind, harmful.outputs)

    def figures(name: str, model: Cut) -> dict[str, Any]:
        own = torch.from_numpy(reader.features(name, model, inputs))
        attacked = tensor(reader.read(name, model, harmful, "")[0])
        grams = {"primary": gram_of(own, targets), "harmful": gram_of(attacked, harmful_targets)}
        spectra = {role: quiet_spectrum(gram) for role, gram in grams.items()}
        row = _primary_scores(name, model, grams["primary"], public, reader)
        near = {of: _retrieval(name, model, task, reader) for of, task in transfer.items()}
        if near := {of: share for of, share in near.items() if share is not None}:
            row["retrieval_transfer"] = near
        for role, spectrum in spectra.items():  # κ is NaN where features collapse to nothing
            row[f"kappa_{role}"] = spectrum.condition_number if spectrum.rank else math.nan
            row[f"rank_{role}"] = spectrum.rank
        row |= {
            "weights": state_digest(extractor_of(model.model)),
            "dimension": spectra["primary"].dimension,
            "rho": rho_of_gram(grams["harmful"]),
            "spectra": {role: spectrum_outline(spectrum) for role, spectrum in spectra.items()},
        }
        if name == original and all(spectrum.rank for spectrum in spectra.values()):
            reach = ceilings(grams["primary"], grams["harmful"])
            row |= {"ceiling": reach.rir, "shared_ceiling": reach.shared}
        return row

    rows = {name: [figures(name, model) for model in of] for name, of in cuts.items()}
    merged = {name: _merged(of) for name, of in rows.items()}
    pairs = [(merged[original], row) for row in merged.values()]
    for name, of in rows.items():
        pairs += [(rows[original][i], row) for i, row in zip(origins[name], of, strict=True)]
    for base, row in pairs:
        change = rir(**{role: _kappas(base, row, role) for role in ROLES})
        ratio = change.figures
        row |= {"rir": ratio["value"]} | ({"rir_reason": r} if (r := ratio.get("reason")) else {})
        row["definition"] = definition(change, (base["primary"], row["primary"])).figures
        answers = [
            primary_hits(one) for one in (base, row)
        ]  # the first variants' say what is chance
        first = [np.empty(0) if hits is None else hits[0] for hits in answers]
        found = primary_kept(base["primary"], row["primary"], (first[0], first[1]), tolerance)
        row |= {"most_lost": found["most_lost"], "broken": found["kept"] is False}
    for name, of in rows.items():
        if len(of) > 1:
            lists = ("spectra", "per_class", "ceiling", "shared_ceiling", "primary_hits")
            variants = [{k: v for k, v in row.items() if k not in lists} for row in of]
            broken = any(row["broken"] for row in variants)
            merged[name] |= {"variants": variants, "broken": broken}
    return merged


def _kappas(before: Mapping[str, Any], after: Mapping[str, Any], role: str) -> tuple[float, float]:
    """Return κ of two models for RIR; NaN for the second where any ranks differ."""
    ranks = {before[f"rank_{role}"], after[f"rank_{role}"]}
    kappa = after[f"kappa_{role}"] if len(ranks) == 1 and None not in ranks else math.nan
    return before[f"kappa_{role}"], kappa


def _merged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one row for the variants of a model."""
    found = dict(rows[0])
    for key in ("kappa_primary", "kappa_harmful"):
        found[key] = math.exp(sum(math.log(row[key]) for row in rows) / len(rows))
    for key in ("rank_primary", "rank_harmful"):
        found[key] = rows[0][key] if len({row[key] for row in rows}) == 1 else None
    for key in ("primary", "rho"):
        values = [row[key] for row in rows]
        found[key] = None if None in values else sum(values) / len(values)
    if "retrieval" in found:
        found["retrieval"] = sum(row["retrieval"] for row in rows) / len(rows)
    for task in found.get("retrieval_transfer", ()):
        values = [row["retrieval_transfer"][task] for row in rows]
        found["retrieval_transfer"] = {**found["retrieval_transfer"], task: sum(values) / len(rows)}
    if "per_class" in found:
        columns = zip(*(row["per_class"] for row in rows), strict=True)
        found["per_class"] = [round(sum(column) / len(rows), 4) for column in columns]
    if "primary_hits" in found:
        found["primary_hits"] = [hits for row in rows for hits in row["primary_hits"]]
    return found


def primary_hits(row: Mapping[str, Any]) -> np.ndarray | None:
    """Return how each variant of a described model answered the primary test rows, if known."""
    packs = row.get("primary_hits")
    return None if packs is None else np.stack([unpacked(pack) for pack in packs])


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
    hits = row_hits(outputs, labels, held.kind)
    found: dict[str, Any] = {"primary": score_of(hits), "primary_hits": [packed(hits.numpy())]}
    if is_text(tensor(held.test.inputs)):
        found["pooling"] = model.pooling
    if (near := _retrieval(name, model, held, reader)) is not None:
        found["retrieval"] = near
    if held.kind == "classification":
        found["per_class"] = class_scores(outputs.argmax(1), labels, held.outputs)
    return found


def _retrieval(name: str, model: Cut, task: Samples, reader: Reader) -> float | None:
    """Return how often a test row's nearest neighbour is of its class; None if it is no text."""
    if task.kind != "classification" or not is_text(tensor(task.test.inputs)):
        return None
    rows = torch.from_numpy(reader.features(name, model, task.test.inputs))
    return retrieval(rows, torch.from_numpy(np.array(task.test.labels)))
