"""One network of the deep experiment: trained as its row says, measured, and probed."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from immunis.attacks.arrays import Data
from immunis.attacks.contract import Arena
from immunis.attacks.search import run_attack
from immunis.core.errors import NumericalError, RankWarning
from immunis.core.jobs import Progress, silent
from immunis.core.settings import require, require_least
from immunis.core.state import quiet
from immunis.data.loader import SAMPLES, Stream, spread
from immunis.data.transforms import Scaling
from immunis.models.cut import Cut
from immunis.models.zoo import LIBRARIES
from immunis.paper import released_network
from immunis.paper.published import printed
from immunis.recipes.defences import Table
from immunis.recipes.pipeline import Pipeline
from immunis.recipes.recipe import Recipe
from immunis.theory.definition import definition
from immunis.theory.gram import gram_of
from immunis.theory.rir import rir_of_spectra
from immunis.theory.scores import score
from immunis.theory.spectrum import Spectrum, quiet_spectrum
from immunis.training.settings import device_of

RELEASED, OURS = "released", "ours"  # how a network was trained
BATCH, PROBE, CLOSED_FORM = 256, "sgd", "ridge"


@dataclass(frozen=True)
class Settings:
    """How much to run: three seeds, and 20 groups of 100 samples, as the paper.

    ``epochs`` are those of linear probing, ``steps`` those of the released training (None: as many
    as the paper's).
    """

    seeds: int = 3
    groups: int = 20
    group: int = 100
    epochs: int = 20
    steps: int | None = None

    def __post_init__(self) -> None:
        require_least(self, 1, "seeds", "groups", "epochs", "steps")
        require_least(self, 2, "group")


class Row(NamedTuple):
    """A row of the table: how it is called, the method, how it was trained, a recipe's table."""

    label: str
    method: str
    training: str
    table: Table | None = None


def paper_row(recipe: Recipe) -> str:
    """Return the part of the paper's table 3 that a recipe belongs to, such as ``cars-vit``.

    The paper has a ResNet-18 and a ViT. Every other network is trained as its ResNet-18 is.
    """
    network = next((str(recipe.model[name]) for name in LIBRARIES if name in recipe.model), "")
    require(
        bool(network) and recipe.data["source"] == "images",
        f"recipe {recipe.name}: deep runs a network of {', '.join(LIBRARIES)} on images. Leave "
        "--recipe out, or give such a one.",
    )
    kind = "vit" if "vit" in network else "resnet18"
    task = "country211" if "country211" in recipe.data["harmful"] else "cars"
    return f"{task}-{kind}"


@dataclass(frozen=True)
class Experiment:
    """A network to immunize, the data on its device, and how much to run."""

    pipeline: Pipeline
    settings: Settings
    before: Cut

    @classmethod
    def of(cls, pipeline: Pipeline, settings: Settings, model: nn.Module) -> Experiment:
        """Put a recipe's network on its device."""
        device = device_of(pipeline.hardware.device)
        return cls(
            pipeline, settings, pipeline.recipe.cut(model, pipeline.tasks.primary).on(device)
        )

    @cached_property
    def streams(self) -> dict[str, Stream]:
        """Training and test rows of the tasks, read once."""
        tasks, device = self.pipeline.tasks, self.before.example.device
        workers = (self.pipeline.recipe.training or {}).get("workers", 0)
        splits = {
            "primary": (tasks.primary, tasks.primary.train),
            "harmful": (tasks.harmful, tasks.harmful.train),
            "primary test": (tasks.primary, tasks.primary.test),
            "attacker": (tasks.attacker, tasks.attacker.train),
            "attacker test": (tasks.attacker, tasks.attacker.test),
        }
        return {
            name: Stream(task, BATCH, split=split, workers=workers, device=device)
            for name, (task, split) in splits.items()
        }

    @cached_property
    def released(self) -> released_network.Settings:
        """The paper's settings, on as many steps as its epochs over all harmful images."""
        given = dict(printed("deep")[paper_row(self.pipeline.recipe)]["released"])
        images = len(self.streams["harmful"].rows) + len(self.streams["attacker"].rows)
        batch = released_network.Settings.batch
        steps = given.pop("epochs") * max(1, images // batch)
        return released_network.Settings(**given, steps=self.settings.steps or steps)

    @cached_property
    def spectra(self) -> dict[str, Spectrum]:
        """The spectra of the original's features."""
        return self.spectra_of(self.before)

    @cached_property
    def accuracy(self) -> float:
        """The original's accuracy on the primary task."""
        return self.accuracy_of(self.before)

    def drawn(self, batch: int, seed: int) -> list[Stream]:
        """Return both tasks' training rows in the order that a seed decides."""
        found = []
        for name in ("primary", "harmful"):
            stream = copy.copy(self.streams[name])
            stream.batch, stream.seed = min(batch, len(stream.rows)), seed
            found.append(stream)
        return found

    @torch.no_grad()
    def features(self, cut: Cut, name: str, most: int | None = None) -> Data:
        """Return features of all rows, or of at most so many, and their classes.

        Raises:
            NumericalError: for features that are not finite, or all zero.
        """
        stream = self.streams[name]
        rows = stream.rows if most is None else spread(stream.rows, most)
        parts = [(cut.features(x).float().cpu(), y.cpu()) for x, y in stream.subset(rows, BATCH)]
        inputs, labels = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
        if not (np.isfinite(inputs).all() and inputs.any()):
            wrong = "all zero" if not inputs.any() else "not finite"
            raise NumericalError(f"after training, features of {name} rows are {wrong}.")
        return Data(inputs, labels)

    def spectra_of(self, cut: Cut) -> dict[str, Spectrum]:
        """Return the spectra of a network's features of both tasks' training rows."""
        return {
            role: quiet_spectrum(
                gram_of(torch.from_numpy(self.features(cut, role, SAMPLES).inputs))
            )
            for role in ("primary", "harmful")
        }

    @torch.no_grad()
    def accuracy_of(self, cut: Cut) -> float:
        """Return the accuracy of a network's own head on the primary task's test rows."""
        test, head = self.features(cut, "primary test"), cut.head_layer
        assert head is not None
        answers = head(torch.from_numpy(test.inputs).to(head.weight))
        return score(answers, torch.from_numpy(test.labels), "classification")

    @property
    def scaling(self) -> Scaling:
        """How images are scaled: as the recipe says, or its weights."""
        return self.pipeline.recipe.shown.get("scaling", "imagenet")

    def trained(self, row: Row, seed: int, progress: Progress = silent) -> Cut:
        """Return the network of a row."""
        recipe, scaling = self.pipeline.recipe, self.scaling
        if row.training == RELEASED:
            streams = self.drawn(self.released.batch, seed)
            how = row.method, self.released, scaling, seed, progress
            return released_network.train(self.before, streams, *how)
        if row.table is None:
            return self.before
        model = copy.deepcopy(self.before.model).cpu()
        found = self.pipeline.defended(row.table, model, seed=seed, progress=progress).model
        whole = recipe.cut(found, self.pipeline.tasks.primary)
        return whole.on(self.before.example.device.type)

    def measured(self, after: Cut, seed: int) -> dict[str, Any]:
        """Return RIR_θ₀ by groups and of all rows, the primary score, and what a probe learns."""
        settings, scaling = self.settings, self.scaling
        streams = self.drawn(settings.group, seed)
        kappa = self.spectra_of(after)
        change = rir_of_spectra({role: (old, kappa[role]) for role, old in self.spectra.items()})
        accuracy = self.accuracy_of(after)
        groups = released_network.group_ratios(
            self.before, after, streams, scaling, seed, settings.groups
        )
        return {
            "groups": groups,
            "full": {"harmful": change.harmful, "primary": change.primary, "rir": change.value},
            "kappa": {k: {"value": s.condition_number, "rank": s.rank} for k, s in kappa.items()},
            "definition": definition(change, (self.accuracy, accuracy)).figures,
            "accuracy": accuracy,
            **self.probed(after, seed),
        }

    def probed(self, after: Cut, seed: int) -> dict[str, Any]:
        """Return the test accuracy of linear probing by epoch, and of ridge regression."""
        outputs = self.pipeline.tasks.attacker.outputs
        train, test = (self.features(after, name) for name in ("attacker", "attacker test"))
        device, cache = self.before.example.device.type, {"": (train.inputs, test.inputs)}
        given = after, "classification", outputs, train, test
        arena = Arena(*given, cache=cache, seed=seed, device=device)
        fitted = len(arena.rows[0])
        budget = max(1, round(self.settings.epochs * fitted / min(BATCH, fitted)))
        arena = replace(arena, budget=budget)
        found = {name: run_attack(name, arena) for name in (PROBE, CLOSED_FORM)}
        for name, outcome in found.items():
            if outcome["status"] != "done":
                raise NumericalError(f"{name}: {outcome['reason']}")
        points = [[p["samples"] / fitted, p["test"]] for p in found[PROBE]["curve"]]
        return {"curve": points, "ridge": found[CLOSED_FORM]["curve"][-1]["test"]}


def run_row(experiment: Experiment, row: Row, seed: int, progress: Progress) -> dict[str, Any]:
    """Train and measure the network of one row and seed, or say why it failed."""
    began = time.perf_counter()

    def named(_: str, share: float) -> None:
        progress(f"{row.label}, seed {seed}", share)

    with quiet(RankWarning):  # the record holds ranks
        try:
            found = experiment.measured(experiment.trained(row, seed, named), seed)
        except NumericalError as error:
            found = {"failed": str(error)}
    return {**found, "seconds": time.perf_counter() - began}
