"""Table 3 and figure 4: a network immunized as released and by the library, measured and probed.

With the recipes on ImageNet this is the paper's experiment. With any other it is a stand-in, and
says so. In both the defender holds every second harmful training image and the attacker the
others. The released training takes as many steps as the paper's epochs over all of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.core.files import key_of
from immunis.core.hashing import state_digest
from immunis.core.jobs import Job, Progress, Run, silent, sweep
from immunis.core.records import Record
from immunis.core.shapes import ORIGINAL
from immunis.data import loader
from immunis.data.split import Corrupt, Split
from immunis.data.task import Tasks
from immunis.paper.deep_network import OURS, RELEASED, Experiment, Row, Settings, paper_row, run_row
from immunis.paper.provenance import code_digest, makers, signed
from immunis.paper.published import FACTORS, UNTESTED, is_near, printed, spread
from immunis.recipes.defences import Table, tables_of
from immunis.recipes.estimate import Estimate, estimate_runs
from immunis.recipes.pipeline import Pipeline
from immunis.recipes.recipe import Recipe
from immunis.theory.measure import data_figures

DEFAULT = "stand-in-cars-resnet18"
STAND_IN = "stand-in: not the paper's data"
LABELS = {"r_ill": "R_ill only", "imma": "IMMA", "opt_kappa": "Opt κ", "algorithm_1": "Alg. 1"}
IMAGENET, HARMFUL = 1000, {"cars": 196, "country211": 211}  # classes
POINTS = 2.0  # accuracy replicates within these points
Found = Mapping[str, Any]  # what a job returns


QUICK = Settings(seeds=1, groups=2, group=20, epochs=2, steps=2)
FEW = {"steps": 2, "batch": 24, "harmful_batch": 24, "evaluate": 1}
FEW_ROWS = 400


def rehearsal(recipe: Recipe) -> Recipe:
    """Return a recipe that a CPU runs in about a minute: few steps, and small images if it can."""

    def short(training: Mapping[str, Any]) -> dict[str, Any]:
        lengths = ("epochs", "harmful_epochs", "harmful_held_out")
        return {k: v for k, v in training.items() if k not in lengths} | FEW

    def shorter(table: Table) -> dict[str, Any]:
        return {**table, "training": short(recipe.training_for(table) or {})}

    audit = dict(recipe.audit)
    if "methods" in audit:
        audit["methods"] = [shorter(table) for table in audit["methods"]]
    data, model = {**recipe.data, "memory": False}, dict(recipe.model)  # few images are read
    if recipe.pretrain is not None:
        data["size"] = 32
        if "img_size" in model.get("options", {}):
            model["options"] = {**model["options"], "img_size": 32}
    method = shorter(recipe.method) if recipe.method else {}
    pretrain = None if recipe.pretrain is None else short(recipe.pretrain)
    training = None if recipe.training is None else short(recipe.training)
    changed: Any = {"data": data, "model": model, "method": method, "audit": audit}
    return replace(recipe, **changed, pretrain=pretrain, training=training)


def few_rows(tasks: Tasks) -> Tasks:
    """Return tasks of at most 400 training and test images, evenly spread over the classes."""

    def few(split: Split | None) -> tuple[Tensor, Tensor] | None:
        if split is None:
            return None
        images: Any = split.dataset()[0]
        found = [images[int(row)] for row in loader.spread(torch.arange(len(images)), FEW_ROWS)]
        inputs, labels = zip(
            *(item for item in found if not isinstance(item, Corrupt)), strict=True
        )
        return torch.stack(inputs), torch.tensor([int(label) for label in labels])

    made = [task.with_data(few(task.train), few(task.test)) for task in tasks[:3]]
    return Tasks(made[0], made[1], made[2])


def is_stand_in(recipe: Recipe, tasks: Tasks) -> bool:
    """Return True unless network and classes are the paper's, and others trained the network."""
    papers = str(recipe.model.get("timm", "")).startswith(("resnet18", "vit_base_patch16"))
    classes = tasks.primary.outputs == IMAGENET and tasks.harmful.outputs in HARMFUL.values()
    return recipe.pretrain is not None or not (papers and classes)


def is_comparable(recipe: Recipe) -> bool:
    """Return True if published figures belong beside a recipe's: its kind of network and task."""
    network, harmful = str(recipe.model.get("timm", "")), recipe.data["harmful"]
    return ("resnet18" in network or "vit" in network) and any(task in harmful for task in HARMFUL)


def rows_of(recipe: Recipe) -> list[Row]:
    """Return the original, the paper's four methods as released, and the recipe's own."""
    released = [Row(label, name, RELEASED) for name, label in LABELS.items()]
    own = [Row(label, table["name"], OURS, table) for label, table in tables_of(recipe).items()]
    return [Row(ORIGINAL, ORIGINAL, ""), *released, *own]


def jobs_of(experiment: Experiment, progress: Progress = silent) -> dict[str, Job]:
    """Return a job for each row and seed; every row comes once before any comes again."""
    pipeline, settings = experiment.pipeline, experiment.settings
    same = {k: v for k, v in asdict(settings).items() if k != "seeds"}
    tasks, hardware = pipeline.tasks, pipeline.hardware
    data = [task.train.identity() for task in (tasks.primary, tasks.harmful, tasks.attacker)]
    made_of = state_digest(experiment.before.model), data, hardware.precision, same
    found = {}
    for seed in range(settings.seeds):
        for row in rows_of(pipeline.recipe):
            how = asdict(experiment.released)
            if row.table is not None:
                how = {**row.table, "training": pipeline.recipe.training_for(row.table)}
            key = key_of(code_digest(), "deep", row[:3], how, seed, *made_of)
            job = Job(run_row, (experiment, row, seed, progress), f"{row.label}: seed {seed}")
            found[key] = signed(job, experiment.before.example.device.type)
    return found


def estimated(pipeline: Pipeline, settings: Settings) -> Estimate:
    """Estimate a run from pilots on the untrained network."""
    model, rows = pipeline.recipe.extractor(pipeline.tasks.primary), rows_of(pipeline.recipe)
    assert isinstance(model, nn.Module)
    experiment = Experiment.of(pipeline, settings, model)
    pilots = {row.label: partial(run_row, experiment, row, 0) for row in rows}
    found = estimate_runs(pipeline, pilots)
    measuring = found.parts.pop(ORIGINAL) * len(rows)  # all that is done with the original
    once = {name: found.parts.pop(name) for name in pilots if name != ORIGINAL}
    for name, seconds in {**once, "measuring": measuring}.items():
        found.parts[name] = settings.seeds * seconds
    return found


def reproduce(pipeline: Pipeline, settings: Settings | None = None) -> Record:
    """Run a recipe's network through the paper's deep experiment and return its record.

    The pipeline's folder keeps the pre-trained network and finished runs, so that a second call
    continues after an interruption.

    Raises:
        InputError: for data or weights that are missing or do not fit.
        SettingsError: for a recipe of another network, or without images.
    """
    began, settings, recipe = time.perf_counter(), settings or Settings(), pipeline.recipe
    rows, progress = rows_of(recipe), pipeline.progress
    total, done = 1 + len(rows) * settings.seeds, [0]  # pre-training counts as one run

    def part(what: str, share: float) -> None:
        progress(what, (done[0] + share) / total)

    def next_part(what: str, share: float) -> None:
        done[0] = 1 + round(share * (total - 1))
        part(what, 0.0)

    classes = pipeline.tasks.primary.outputs
    narrowed = recipe.model.get("imagenet_head", False)
    if recipe.model.get("pretrained") and not narrowed and classes != IMAGENET:
        told = f"{pipeline.tasks.primary.name} holds {classes} classes; the pre-trained head knows"
        raise InputError(f"{told} ImageNet's {IMAGENET}. Give the training folders of all of them.")
    pipeline = replace(pipeline, progress=part)
    pipeline.rehearse([row.table for row in rows if row.table is not None])
    part("the original", 0.0)
    model = pipeline.original()
    assert isinstance(model, nn.Module)
    done[0] = 1
    experiment = Experiment.of(pipeline, settings, model)
    folder = None if pipeline.folder is None else Path(pipeline.folder) / "runs"
    jobs = jobs_of(experiment, part)
    results = list(sweep(jobs, Run(folder=folder, progress=next_part)).values())
    tasks, said = pipeline.tasks, printed("deep")
    used = {
        **asdict(settings),
        "recipe_name": recipe.name,
        "recipe": recipe.to_dict(),
        "stand_in": is_stand_in(recipe, tasks),
        "released": asdict(experiment.released),
        "published": said["table"],
        "hardware": asdict(pipeline.hardware),
    }
    found = figures(experiment, rows, [result["found"] for result in results])
    found["made_by"] = makers(results)
    data = data_figures(primary=tasks.primary, harmful=tasks.harmful, attacker=tasks.attacker)
    seconds = time.perf_counter() - began
    return Record("reproduce", "deep", found, used, data, recipe.seed, seconds)


def figures(
    experiment: Experiment, rows: Sequence[Row], results: Sequence[Found]
) -> dict[str, Any]:
    """Return the rows of the table, each over its seeds, beside what the paper printed."""
    recipe = experiment.pipeline.recipe
    said = printed("deep")[paper_row(recipe)]
    stand_in = is_stand_in(recipe, experiment.pipeline.tasks)
    whole = replace(Settings(), seeds=experiment.settings.seeds)
    tested = experiment.settings == whole and whole.seeds >= Settings().seeds
    tested &= abs(100 * experiment.accuracy - said["initial"]) <= POINTS
    shown = is_comparable(recipe) and experiment.settings.steps is None  # not beside a rehearsal
    made = []
    for place, row in enumerate(rows):
        runs = results[place :: len(rows)]
        published = said["methods"].get(row.method) if shown and row.training == RELEASED else None
        good = [run for run in runs if "failed" not in run]
        found: dict[str, Any] = {
            "label": row.label,
            "method": row.method,
            "training": row.training,
            "published": published,
            "runs": len(runs),
            "failed": [run["failed"] for run in runs if "failed" in run],
        }
        if good:
            found |= _summary(good)
        judged = row.training == RELEASED
        said_of = verdict(published, found, tested, stand_in) if judged else "–"
        made.append({**found, "verdict": said_of})
    spectra = {
        k: {"rank": s.rank, "dimension": s.dimension, "samples": s.samples}
        for k, s in experiment.spectra.items()
    }
    initial = said["initial"] if shown else None
    return {"initial": initial, "rows": made, "spectra": spectra}


def _summary(runs: Sequence[Found]) -> dict[str, Any]:
    """Return every figure of a row over its seeds."""

    def spreads(name: str) -> dict[str, Any]:
        return {factor: spread(run[name][factor] for run in runs) for factor in FACTORS}

    curve = []
    for points in zip(*(run["curve"] for run in runs), strict=True):
        scores = [score for _, score in points]
        epochs = float(np.mean([epoch for epoch, _ in points]))
        curve.append({"epochs": epochs, "mean": float(np.mean(scores))} | _range(scores))
    return {
        "groups": spreads("groups"),
        "full": spreads("full"),
        "ranks": {
            role: _range([run["kappa"][role]["rank"] for run in runs])
            for role in ("primary", "harmful")
        },
        "definition": {  # in how many runs each condition holds
            name: sum(bool(run["definition"][name]["holds"]) for run in runs)
            for name in ("harmful", "primary", "score")
        },
        "accuracy": spread(run["accuracy"] for run in runs),
        "curve": curve,
        "ridge": spread(run["ridge"] for run in runs),
        "seconds": sum(run["seconds"] for run in runs),
    }


def _range(values: Sequence[Any]) -> dict[str, Any]:
    return {"low": min(values), "high": max(values)}


def verdict(published: Found | None, found: Found, tested: bool, stand_in: bool) -> str:
    """Return whether a row replicates with the released κ of groups, and holds with κ of eq. 1.

    It replicates if (i), (ii) and RIR are within a factor of three of the published ones and the
    accuracy is within two points. It holds if RIR lies on the published side of 1 in every seed;
    an RIR that is not defined lies on neither. A stand-in answers neither, nor does a run that is
    shorter than the paper's.
    """
    if stand_in:
        return STAND_IN
    if not tested or published is None:
        return UNTESTED
    if "groups" not in found:
        return "does not replicate: every run failed"
    near = all(is_near(found["groups"][each]["mean"], published[each][0]) for each in FACTORS)
    near &= abs(100 * found["accuracy"]["mean"] - published["accuracy"][0]) <= POINTS
    values, large = found["full"]["rir"]["values"], published["rir"][0] > 1
    sides = [(value > 1) == large and value == value for value in values]
    words = "replicates" if near else "does not replicate"
    return f"released κ: {words}; eq. 1: holds in {sum(sides)} of {len(sides)} seeds"
