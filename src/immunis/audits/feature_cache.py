"""Tasks as arrays, and features read once per model and layer, in batches that fit."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from immunis.attacks.contract import Data, Samples
from immunis.attacks.meter import count_flops
from immunis.core.errors import InputError
from immunis.core.hashing import state_digest
from immunis.data.checks import hash_rows
from immunis.data.split import Split
from immunis.data.task import Task
from immunis.models.cut import Cut


def samples_of(task: Task) -> Samples:
    """Return a task as arrays, refusing one that no attack can be scored on."""
    if task.test is None:
        raise InputError(f"{task.name}: an audit scores on test data; give Task(test=...).")
    if task.kind == "classification" and len(task.classes) < 2:
        raise InputError(f"{task.name} has a single class; an attack on it says nothing.")

    def data(split: Split) -> Data:
        inputs, labels = split.tensors()
        if not split.in_memory:  # a loader may shuffle: the same rows, in one order
            order = torch.tensor(np.argsort(np.array(list(hash_rows(inputs)), dtype=object)))
            inputs, labels = inputs[order], labels[order]
        if task.kind == "classification":
            return Data(array_of(inputs), array_of(task.positions(labels)))
        return Data(array_of(inputs), array_of(task.targets(labels)))

    return Samples(task.kind, task.outputs, data(task.train), data(task.test))


def array_of(values: Tensor) -> np.ndarray:
    """Return a tensor as a contiguous array, which worker processes share; half precision wider."""
    half = values.dtype in (torch.float16, torch.bfloat16)
    return np.ascontiguousarray((values.float() if half else values).detach().cpu().numpy())


def chance_of(task: Samples) -> float:
    """Test score of the best constant answer: the commonest class, or R² = 0."""
    if task.kind == "regression":
        return 0.0
    commonest = np.bincount(task.train.labels).argmax()
    return float((task.test.labels == commonest).mean())


class Reader:
    """Reads features once per model and layer, in batches that fit."""

    def __init__(self, example: Tensor) -> None:
        self.example, self.batch = example, 512
        self._cache: dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray]] = {}
        self._digests: dict[int, tuple[Any, str]] = {}
        self._flops: dict[str, float] = {}

    def digest(self, model: Cut) -> str:
        """Hash of a model's structure, its weights, and what it makes of a few inputs.

        The last tells models apart that differ in hooks or plain attributes only.
        """
        if id(model) not in self._digests:
            total = hashlib.sha256(repr((model.model, model.head)).encode())
            total.update(state_digest(model.model).encode())
            total.update(array_of(self._forward(model, self.example, "")).tobytes())
            self._digests[id(model)] = (model, total.hexdigest())
        return self._digests[id(model)][1]

    def digest_data(self, task: Samples) -> str:
        """Hash of a task's arrays."""
        if id(task) not in self._digests:
            total = hashlib.sha256(f"{task.kind} {task.outputs}".encode())
            for part in (task.train, task.test):
                total.update(part.inputs.tobytes() + part.labels.tobytes())
            self._digests[id(task)] = (task, total.hexdigest())
        return self._digests[id(task)][1]

    def flops(self, model: Cut, task: Samples) -> float:
        """Operations of reading one sample."""
        key = self.digest(model)
        if key not in self._flops:
            one = torch.from_numpy(task.train.inputs[:1])
            self._flops[key] = count_flops(lambda: self._forward(model, one, ""))[1]
        return self._flops[key]

    def read(self, name: str, model: Cut, task: Samples, layer: str) -> tuple[Any, Any]:
        """Features of a task's training and test inputs at a layer."""
        key = (self.digest(model), self.digest_data(task), layer)
        if key not in self._cache:
            self._cache[key] = (
                self.features(name, model, task.train.inputs, layer),
                self.features(name, model, task.test.inputs, layer),
            )
        return self._cache[key]

    def features(self, name: str, model: Cut, inputs: np.ndarray, layer: str = "") -> np.ndarray:
        """Features of some inputs at a layer."""
        found = self._in_batches(name, inputs, lambda x: self._forward(model, x, layer))
        if not bool(torch.isfinite(found).all()):
            raise InputError(
                f"{name} gives NaN or infinite features at layer {layer or 'features'}; it cannot "
                "be audited. Check its weights and the scale of its inputs."
            )
        return array_of(found)

    @torch.no_grad()
    def answers(self, name: str, model: Cut, inputs: np.ndarray) -> np.ndarray:
        """What the model itself answers to some inputs."""
        return array_of(self._in_batches(name, inputs, lambda x: model.answers(x).cpu()))

    def _in_batches(
        self, name: str, inputs: np.ndarray, call: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Join the results of a call; halves the batch when memory runs out."""
        while True:
            try:
                return torch.cat([call(x) for x in torch.from_numpy(inputs).split(self.batch)])
            except (MemoryError, torch.OutOfMemoryError):
                if self.batch == 1:
                    raise
                self.batch //= 2
                warnings.warn(
                    f"out of memory while reading {name}; going on with batches of {self.batch}.",
                    stacklevel=3,
                )

    @torch.no_grad()
    def _forward(self, model: Cut, inputs: Tensor, layer: str) -> Tensor:
        return model.features(inputs, layer).cpu()


def disjoint_rows(attacker: Task, primary: Task, defender: Task | None) -> dict[str, Any]:
    """Refuse an attacker who trains or is scored on rows that the defence has seen.

    Rows that the attacker's own training and test data share are counted and warned of.
    """
    known = set(primary.train.row_hashes())
    if defender is not None:
        known.update(defender.train.row_hashes())
    own = set(attacker.train.row_hashes())
    test = set(attacker.test.row_hashes()) if attacker.test is not None else set()
    shared = len(own & known)
    if defender is not None:
        shared += len(test & set(defender.train.row_hashes()))
    if shared:
        raise InputError(
            f"{shared} sample(s) of {attacker.name} are also in the defence's own data: the "
            "attacker must hold data that the defence has never seen, or the audit flatters it. "
            "Split the data."
        )
    if own & test:
        warnings.warn(
            f"{attacker.name}: {len(own & test)} sample(s) are in both training and test data; "
            "scores are too high by that.",
            stacklevel=3,
        )
    return {"checked": defender is not None, "shared": 0, "train_in_test": len(own & test)}
