"""Attacks × models × seeds as jobs: each runs once and is found again by what it was run for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from immunis.attacks.contract import Arena, Attack, Samples
from immunis.attacks.search import run_attack
from immunis.audits.feature_cache import Reader
from immunis.core.hashing import key_of
from immunis.core.jobs import Job
from immunis.core.version import __version__
from immunis.models.cut import Cut


@dataclass
class Jobs:
    """The attacks of an audit; ``budget``, ``trials`` and ``space`` are those of ``Effort``."""

    reader: Reader
    budget: int
    trials: int | None
    space: Mapping[str, Sequence[Any]]
    harmless: Samples | None  # a task that some attacks train on first
    device: str
    shipped: bool  # to other processes, which move models to the device themselves
    todo: dict[str, Job] = field(default_factory=dict)  # by key
    _sent: dict[int, Cut] = field(default_factory=dict)
    _keys: dict[tuple[str, str], dict[str, list[str]]] = field(default_factory=dict)

    def add(
        self, what: str, task: Samples, attack: Attack, name: str, model: Cut, seed: int
    ) -> None:
        """Add one attack on one model with one seed; ``what`` names the task."""
        reader, layers = self.reader, attack.layers(model)
        keys = self._keys.setdefault((what, attack.name), {}).setdefault(name, [])
        if len(keys) > seed:
            return
        if id(model) not in self._sent:
            self._sent[id(model)] = model.on("cpu") if self.shipped else model
        arena = Arena(
            self._sent[id(model)],
            **vars(task),
            cache={layer: reader.read(name, model, task, layer) for layer in layers},
            extraction_flops=reader.flops(model, task) if layers else 0.0,
            harmless=self.harmless,
            budget=self.budget,
            seed=seed,
            device=self.device,
        )
        known = None if self.harmless is None else reader.digest_data(self.harmless)
        decides = (attack.name, reader.digest(model), reader.digest_data(task), seed)
        effort = (self.budget, self.trials, known, *([dict(self.space)] if self.space else []))
        key = key_of(__version__, *decides, *effort)
        arguments = (attack.name, arena, self.trials, self.space)
        self.todo[key] = Job(run_attack, arguments, f"{attack.name}: {name}")
        keys.append(key)

    def outcomes(self, results: Mapping[str, Any], what: str, attack: str) -> dict[str, list[Any]]:
        """Return the results of an attack by model, one for each seed in order."""
        by_model = self._keys[what, attack]
        return {name: [results[key] for key in keys] for name, keys in by_model.items()}
