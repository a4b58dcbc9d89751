"""Who is attacked: every variant of every model, and the untrained control, with every seed.

Each of several seeds has a sample of the attacker's rows of its own (``attacks.sampling``), the
same one for all models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from immunis.attacks import Budget
from immunis.attacks.arrays import Samples
from immunis.attacks.contract import Arena, Attack, NotApplicableError
from immunis.attacks.sampling import PARTS, sample
from immunis.attacks.search import run_attack, space_of
from immunis.audits.describe import Reader
from immunis.audits.statistics.bootstrap import Design
from immunis.audits.statistics.claims import ENOUGH_CONTROLS
from immunis.core.errors import InputError
from immunis.core.files import key_of
from immunis.core.jobs import Job
from immunis.core.records import __version__
from immunis.core.shapes import CONTROL, SCRATCH
from immunis.models.cut import Cut
from immunis.models.find_cut import cut
from immunis.models.zoo import untrained


@dataclass(frozen=True, eq=False)
class Variant:
    """One training of a model, and the place of the original that it was made from."""

    model: Any
    original: int = 0


@dataclass(frozen=True)
class Lineup:
    """The models of an audit, cut into extractor and head.

    Attributes:
        cuts: the variants of each model, by name.
        fresh: the untrained control: its draws for each seed, all different.
        design: which original each variant was made from, and the number of seeds.
    """

    cuts: dict[str, list[Cut]]
    fresh: list[list[Cut]]
    design: Design

    def runs(self) -> list[tuple[str, Cut, int, int]]:
        """Return name, model, variant and seed of every run, variants of the control as one."""
        found = [
            (name, model, place, seed)
            for name, of in self.cuts.items()
            for place, model in enumerate(of)
            for seed in range(self.design.seeds)
        ]
        return found + self.control_runs()

    def control_runs(self) -> list[tuple[str, Cut, int, int]]:
        """Return the runs of the untrained control."""
        return [
            (CONTROL, model, place, seed)
            for seed, of in enumerate(self.fresh)
            for place, model in enumerate(of)
        ]

    def attackers(self, task: Samples) -> dict[str, int]:
        """Return how many different samples of rows the seeds have, and the rows of one and all."""
        labels, several = task.train.labels, self.design.parts > 0
        draws = range(self.design.seeds) if several else [None]
        owned = [sample(labels, task.kind, draw) for draw in draws]
        different = len({rows.tobytes() for rows in owned})
        return {"samples": different, "rows": len(owned[0]), "of": len(labels)}


def control_draws(seeds: int) -> int:
    """Return how many untrained controls each seed attacks: three or more in all."""
    return -(-ENOUGH_CONTROLS // seeds)


def lineup(
    models: Mapping[str, Any],
    original: str,
    seeds: int,
    example: Tensor,
    outputs: int,
    head: str | None,
    device: str,
) -> Lineup:
    """Cut every variant of every model, and draw the untrained control.

    Raises:
        InputError: for names that an audit cannot use, or variants of unknown originals.
    """
    _check_names(models, original)
    variants = {name: of if isinstance(of, list) else [of] for name, of in models.items()}
    count = len(variants[original])
    origins, cuts = dict[str, Sequence[int]](), dict[str, list[Cut]]()
    for name, of in variants.items():
        origins[name] = _origins(name, of, count, name == original)
        plain = [each.model if isinstance(each, Variant) else each for each in of]
        cuts[name] = [cut(each, example, outputs, head, name).on(device) for each in plain]
    draws = control_draws(seeds)
    fresh = [
        [untrained(cuts[original][0], draws * seed + place) for place in range(draws)]
        for seed in range(seeds)
    ]
    parts = PARTS if seeds > 1 else 0
    design = Design({**origins, CONTROL: [0] * draws}, seeds, parts, fresh=[CONTROL])
    return Lineup(cuts, fresh, design)


def is_linear(given: Any) -> bool:
    """Return True for a matrix or a linear layer, or variants of one."""
    first = given[0] if isinstance(given, list) else given
    first = first.model if isinstance(first, Variant) else first
    return isinstance(first, Tensor | np.ndarray | nn.Linear)


def _origins(name: str, variants: list[Any], originals: int, undefended: bool) -> list[int]:
    """Return which original each variant was made from; raise InputError where it is not known."""
    if not variants:
        raise InputError(f"{name}: no model came; expected one or more.")
    if undefended:
        return list(range(originals))
    paired = len(variants) == originals
    found = [
        each.original if isinstance(each, Variant) else place if paired else 0
        for place, each in enumerate(variants)
    ]
    told = paired or originals == 1 or all(isinstance(each, Variant) for each in variants)
    if not told or set(found) != set(range(originals)):
        raise InputError(
            f"{name}: {len(variants)} models for {originals} originals; give one made from each, "
            "in their order, or Variant(model, original) for each, with all originals among them."
        )
    return found


def _check_names(models: Mapping[str, Any], original: str) -> None:
    """Raise InputError unless models come by name, the undefended one among them."""
    if not isinstance(models, Mapping):
        raise InputError(
            f"models came as a {type(models).__name__}; expected them by name, as in "
            f"{{{original!r}: model}}."
        )
    if original not in models:
        raise InputError(
            f"models are {', '.join(models) or 'none'}; expected the undefended one among them as "
            f"{original!r}. Add it, or give its name as original=."
        )
    if {CONTROL, SCRATCH} & set(models):
        raise InputError(f"{CONTROL!r} and {SCRATCH!r} are the audit's own controls; rename yours.")


@dataclass
class Jobs:
    """Attacks × variants × seeds; each runs once and is found again by what it was run for."""

    reader: Reader
    trials: int | None
    space: Mapping[str, Sequence[Any]]
    budget: Budget
    harmless: Samples | None  # a task that some attacks train on first
    primary: Samples | None  # public data of the models' own task, for the same
    device: str
    shipped: bool  # to other processes, which move models to the device themselves
    drawn: bool  # each seed has a sample of the training rows of its own
    todo: dict[str, Job] = field(default_factory=dict)  # by key
    _checked: set[str] = field(default_factory=set)
    _sent: dict[Cut, Cut] = field(default_factory=dict)
    _keys: dict[tuple[str, str], dict[str, dict[tuple[int, int], str]]] = field(
        default_factory=dict
    )

    def add(
        self,
        what: str,
        task: Samples,
        attack: Attack,
        name: str,
        model: Cut,
        variant: int,
        seed: int,
    ) -> None:
        """Add one attack on one variant of a model with one seed; ``what`` names the task."""
        reader, layers = self.reader, attack.layers(model)
        draw = seed if self.drawn else None
        keys = self._keys.setdefault((what, attack.name), {}).setdefault(name, {})
        if (variant, seed) in keys:
            return
        if model not in self._sent:
            self._sent[model] = model.on("cpu") if self.shipped else model
        arena = Arena(
            self._sent[model],
            **vars(task),
            cache={layer: reader.read(name, model, task, layer) for layer in layers},
            extraction_flops=reader.flops(model, task) if layers else 0.0,
            harmless=self.harmless,
            primary=self.primary,
            budget=self.budget.of(attack),
            seed=seed,
            draw=draw,
            device=self.device,
        )
        if attack.name not in self._checked:  # a wrong request is refused before anything runs
            self._checked.add(attack.name)
            with suppress(NotApplicableError):
                space_of(attack, arena, self.space)
        others = (self.harmless, self.primary)
        known = [None if other is None else reader.digest_data(other) for other in others]
        decides = (attack.name, reader.digest(model), reader.digest_data(task), seed, draw)
        searched = (
            self.budget.of(attack),
            self.trials,
            known,
            *([dict(self.space)] if self.space else []),
        )
        key = key_of(__version__, *decides, *searched)
        arguments = (attack.name, arena, self.trials, self.space)
        self.todo[key] = Job(run_attack, arguments, f"{attack.name}: {name}")
        keys[variant, seed] = key

    def results(self, found: Mapping[str, Any], what: str, attack: str) -> dict[str, list[Any]]:
        """Return the results of an attack by model: variant by variant, each with every seed."""
        by_model = self._keys[what, attack]
        return {name: [found[keys[run]] for run in sorted(keys)] for name, keys in by_model.items()}
