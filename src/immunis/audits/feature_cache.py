"""Tasks as arrays, and features read once per model and layer, in batches that fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from hashlib import sha256
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
    """Return a task as arrays; raise InputError if no attack can be scored on it."""
    if task.test is None:
        raise InputError(f"{task.name}: an audit scores on test data; expected Task(train, test).")
    if task.kind == "classification" and len(task.classes) < 2:
        raise InputError(f"{task.name} has a single class; expected two or more.")

    def data(split: Split) -> Data:
        inputs, labels = split.tensors()
        if not split.in_memory:  # a loader may shuffle: the same rows, in one order
            order = torch.tensor(np.argsort(np.array(list(hash_rows(inputs)), dtype=object)))
            inputs, labels = inputs[order], labels[order]
        known = task.positions if task.kind == "classification" else task.targets
        return Data(array_of(inputs), array_of(known(labels)))

    return Samples(task.kind, task.outputs, data(task.train), data(task.test))


def array_of(values: Tensor) -> np.ndarray:
    """Return a tensor as a contiguous array, which workers share; half precision as float32."""
    half = values.dtype in (torch.float16, torch.bfloat16)
    return np.ascontiguousarray((values.float() if half else values).detach().cpu().numpy())


def chance_of(task: Samples) -> float:
    """Return the test score of the best constant answer: the commonest class, or R² = 0."""
    if task.kind == "regression":
        return 0.0
    commonest = np.bincount(task.train.labels).argmax()
    return float((task.test.labels == commonest).mean())


class Reader:
    """Read features once for each model and layer, in batches that fit."""

    def __init__(self, example: Tensor) -> None:
        self.example, self.batch = example, 512
        self._cache: dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray]] = {}
        self._digests: dict[int, tuple[Any, str]] = {}  # with what was hashed, so that ids stay
        self._flops: dict[str, float] = {}

    def digest(self, model: Cut) -> str:
        """Return a hash of a model's structure, its weights, and its features of a few inputs.

        The features tell models apart that differ in hooks or plain attributes only.
        """
        if id(model) not in self._digests:
            text = repr((model.model, model.head)) + state_digest(model.model)
            features = array_of(self._forward(model, self.example, "")).tobytes()
            self._digests[id(model)] = model, sha256(text.encode() + features).hexdigest()
        return self._digests[id(model)][1]

    def digest_data(self, task: Samples) -> str:
        """Return a hash of a task's arrays."""
        if id(task) not in self._digests:
            total = sha256(f"{task.kind} {task.outputs}".encode())
            for part in (task.train, task.test):
                total.update(part.inputs.tobytes() + part.labels.tobytes())
            self._digests[id(task)] = task, total.hexdigest()
        return self._digests[id(task)][1]

    def flops(self, model: Cut, task: Samples) -> float:
        """Return the operations of reading one sample."""
        key = self.digest(model)
        if key not in self._flops:
            one = torch.from_numpy(task.train.inputs[:1])
            self._flops[key] = count_flops(lambda: self._forward(model, one, ""))[1]
        return self._flops[key]

    def read(self, name: str, model: Cut, task: Samples, layer: str) -> tuple[Any, Any]:
        """Return the features of a task's training and test inputs at a layer."""
        key = (self.digest(model), self.digest_data(task), layer)
        if key not in self._cache:
            both = (task.train.inputs, task.test.inputs)
            train, test = (self.features(name, model, inputs, layer) for inputs in both)
            self._cache[key] = train, test
        return self._cache[key]

    def features(self, name: str, model: Cut, inputs: np.ndarray, layer: str = "") -> np.ndarray:
        """Return the features of some inputs at a layer; raise InputError if any is not finite."""
        found = self._in_batches(name, inputs, lambda x: self._forward(model, x, layer))
        if not np.isfinite(found).all():
            raise InputError(
                f"{name} gives NaN or infinite features at layer {layer or 'features'}; it cannot "
                "be audited. Check its weights and the scale of its inputs."
            )
        return found

    @torch.no_grad()
    def answers(self, name: str, model: Cut, inputs: np.ndarray) -> np.ndarray:
        """Return what the model itself answers to some inputs."""
        return self._in_batches(name, inputs, lambda x: model.answers(x).cpu())

    def _in_batches(
        self, name: str, inputs: np.ndarray, call: Callable[[Tensor], Tensor]
    ) -> np.ndarray:
        """Join the results of a call; halve the batch when memory runs out."""
        while True:
            try:
                blocks = torch.from_numpy(inputs).split(self.batch)
                return array_of(torch.cat([call(block) for block in blocks]))
            except (MemoryError, torch.OutOfMemoryError):
                if self.batch == 1:
                    raise
                self.batch //= 2
                told = f"out of memory while reading {name}; continuing with batches of"
                warnings.warn(f"{told} {self.batch}.", stacklevel=3)

    @torch.no_grad()
    def _forward(self, model: Cut, inputs: Tensor, layer: str) -> Tensor:
        return model.features(inputs, layer).cpu()


def disjoint_rows(attacker: Task, primary: Task, defender: Task | None) -> dict[str, Any]:
    """Raise InputError if the attacker trains or is scored on rows that the defence has seen.

    Warn of rows that the attacker's own training and test data share, and count them.
    """
    seen = set() if defender is None else set(defender.train.row_hashes())
    own = set(attacker.train.row_hashes())
    test = set() if attacker.test is None else set(attacker.test.row_hashes())
    shared = len(own & (seen | set(primary.train.row_hashes()))) + len(test & seen)
    if shared:
        raise InputError(
            f"{shared} sample(s) of {attacker.name} are also in the defence's own data, so the "
            "audit would flatter the attacker. Split the data: the attacker must hold samples "
            "that the defence has never seen."
        )
    both = len(own & test)
    if both:
        warnings.warn(
            f"{attacker.name}: {both} sample(s) are in both training and test data; scores are "
            "too high by that.",
            stacklevel=3,
        )
    return {"checked": defender is not None, "shared": 0, "train_in_test": both}
