"""Attacks × models × seeds as jobs: each run once, found again by what it was run for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from immunis.attacks.contract import Arena, Attack, Samples
from immunis.attacks.search import run_attack
from immunis.audits.feature_cache import Reader
from immunis.core.hashing import key_of
from immunis.core.jobs import Job, Run, sweep
from immunis.core.version import __version__
from immunis.models.cut import Cut


class Docket:
    """The attacks of an audit.

    Args:
        reader: reads features, once for all attacks that need them.
        budget: largest number of optimizer steps of an attack.
        trials: settings that optuna tries per attack; None for the fixed grid.
        space: values that attacks may search, by setting.
        harmless: a task that some attacks learn the harmful one from.
        device: where models are read and fine-tuned.
        shipped: whether jobs run in other processes, which move models to the device themselves.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        budget: int,
        trials: int | None,
        space: Mapping[str, Sequence[Any]] | None,
        harmless: Samples | None,
        device: str,
        shipped: bool,
    ) -> None:
        self.reader, self.budget, self.trials, self.space = reader, budget, trials, space
        self.harmless, self.device, self.shipped = harmless, device, shipped
        self._jobs: dict[str, Job] = {}
        self._sent: dict[int, Cut] = {}
        self._keys: dict[tuple[str, str, str], dict[int, str]] = {}
        self._results: dict[str, Any] = {}

    def add(
        self, what: str, task: Samples, attack: Attack, name: str, model: Cut, seed: int
    ) -> None:
        """Enlist one attack on one model with one seed; ``what`` names the task."""
        reader, layers = self.reader, tuple(attack.layers(model))
        cache = {layer: reader.read(name, model, task, layer) for layer in layers}
        if id(model) not in self._sent:
            self._sent[id(model)] = model.on("cpu") if self.shipped else model
        arena = Arena(
            self._sent[id(model)], task.kind, task.outputs, task.train, task.test, cache,
            reader.flops(model, task) if layers else 0.0, self.harmless, self.budget, seed,
            self.device,
        )  # fmt: skip
        key = key_of(
            __version__, attack.name, reader.digest(model), reader.digest_data(task), seed,
            self.budget, self.trials,
            None if self.harmless is None else reader.digest_data(self.harmless),
            *([dict(self.space)] if self.space else []),
        )  # fmt: skip
        todo = (attack.name, arena, self.trials, self.space)
        self._jobs[key] = Job(run_attack, todo, f"{attack.name}: {name}")
        self._keys.setdefault((what, attack.name, name), {})[seed] = key

    def run(self, run: Run) -> None:
        """Run what was enlisted."""
        self._results = sweep(
            self._jobs,
            run,
            lasting=lambda found: isinstance(found, dict) and {"curve", "trials"} <= found.keys(),
        )

    def outcomes(self, what: str, attack: str) -> dict[str, list[Any]]:
        """Results of an attack by model, one for each seed in order."""
        return {
            name: [self._results[keys[seed]] for seed in sorted(keys)]
            for (of, by, name), keys in self._keys.items()
            if (of, by) == (what, attack)
        }
