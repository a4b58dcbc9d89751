"""What a recipe describes, built and run: its original model, its defences, and their audit.

Trained networks are kept in a folder under a hash of everything that decides them. An audit, or
a second command, trains none of them again.
"""

from __future__ import annotations

import copy
import dataclasses
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from immunis.attacks.search import need_optuna
from immunis.audits.audit import Audit, audit
from immunis.core.controls import ORIGINAL
from immunis.core.distributed import rank
from immunis.core.errors import InputError, RankWarning, unknown
from immunis.core.files import make_folder, write_bytes
from immunis.core.hashing import key_of, state_digest
from immunis.core.jobs import HERE, Run
from immunis.core.progress import Progress, silent
from immunis.core.records import Record
from immunis.core.settings import build, require
from immunis.core.version import __version__
from immunis.data.sources import Tasks
from immunis.methods import get_method
from immunis.methods.immunize import Immunized, immunize
from immunis.methods.record import feature_gram
from immunis.models.weights import load_weights
from immunis.recipes.recipe import Recipe
from immunis.report.export import weights
from immunis.theory.gram import check_pair
from immunis.theory.measure import Measurement, measure, measured
from immunis.training import checkpoint as checkpoints
from immunis.training.hardware import Hardware, device_of
from immunis.training.loop import fit
from immunis.training.objective import supervised_only
from immunis.training.settings import training_of
from immunis.training.setup import divided

Table = Mapping[str, Any]  # of a recipe: a method's name, its settings, its label and training


def original(
    recipe: Recipe,
    tasks: Tasks,
    hardware: Hardware | None = None,
    folder: str | Path | None = None,
    progress: Progress = silent,
) -> nn.Module | Tensor:
    """Return the model that a recipe defends; pre-train it, or load it if it was kept."""
    model = recipe.extractor(tasks.primary)
    if recipe.pretrain is None:
        return model
    assert isinstance(model, nn.Module)
    precision = (hardware or Hardware()).precision
    data = tasks.primary.train.identity()
    key = key_of(__version__, recipe.model, recipe.pretrain, data, recipe.seed, precision)[:16]
    path = None if folder is None else make_folder(folder) / f"original-{key}.safetensors"
    place = None if path is None else path.with_name(f"pretraining-{key}")
    if _load_kept(model, path):
        return model
    result = fit(
        recipe.cut(model, tasks.primary),
        supervised_only(),
        tasks.primary,
        None,
        training_of(recipe.pretrain),
        hardware,
        seed=recipe.seed,
        folder=place,
        resume=place is not None,
        progress=lambda _, share: progress("pre-training", share),
    )
    if path is not None and place is not None and rank() == 0:
        write_bytes(path, weights(result.model))
        (place / checkpoints.NAME).unlink(missing_ok=True)  # its curves stay
    return result.model


def measure_recipe(
    recipe: Recipe,
    tasks: Tasks,
    hardware: Hardware | None = None,
    folder: str | Path | None = None,
    progress: Progress = silent,
) -> Measurement:
    """Measure a recipe's tasks: the features of its network, or the inputs if it has none.

    It reads at most 16,384 samples of a network's features, or eight for each feature.
    """
    hardware = hardware or Hardware()
    if not recipe.is_network:
        told = f"{recipe.name} reads images, whose pixels say little: name a network in [model]."
        require(recipe.data["source"] != "images", told)
        _check_used(hardware, "inputs are measured as they are", "name a network in [model]")
        return measure(tasks.primary, tasks.harmful)
    if recipe.pretrain is None:
        used = dataclasses.replace(hardware, device="cpu")
        _check_used(used, "no network is trained first", "add [pretrain] to the recipe")
    began, device = time.perf_counter(), device_of(hardware.device)
    pair = tasks.primary, tasks.harmful
    check_pair(*pair)
    model = original(recipe, tasks, hardware, folder, progress)
    whole = recipe.cut(model, tasks.primary).on(device)
    return measured((feature_gram(whole, pair[0]), feature_gram(whole, pair[1])), pair, began)


def immunize_recipe(
    recipe: Recipe,
    tasks: Tasks,
    hardware: Hardware | None = None,
    folder: str | Path | None = None,
    progress: Progress = silent,
    *,
    resume: bool = False,
    wandb: str | None = None,
) -> Immunized:
    """Defend a recipe's model by its own method; ``folder`` keeps checkpoints and curves."""
    if not recipe.is_trained and recipe.pretrain is None:
        solved = f"method {recipe.method['name']!r} is solved in closed form"
        _check_used(hardware or Hardware(), solved, "add [training] to the recipe")
    rehearse(recipe, [recipe.method], tasks)
    model = original(recipe, tasks, hardware, folder, progress)
    options = {"hardware": hardware, "folder": folder, "resume": resume, "wandb": wandb}
    return defended(recipe, recipe.method, model, tasks, progress=progress, **options)


def _check_used(hardware: Hardware, why: str, remedy: str) -> None:
    """Raise ``SettingsError`` if hardware is asked for where nothing is trained on it."""
    told = "--device, --devices, --nodes, --strategy, --precision and --compile are for networks"
    unused = hardware in (Hardware(), Hardware(device="auto"))
    require(unused, f"{told}, and here {why}. Leave them out, or {remedy}.")


def rehearse(recipe: Recipe, tables: Iterable[Table], tasks: Tasks) -> None:
    """Check that defences fit the network and the data, before hours of pre-training."""
    if recipe.pretrain is None:
        return
    whole = recipe.cut(recipe.extractor(tasks.primary), tasks.primary)
    for table in tables:
        training, method = recipe.training_for(table), get_method(table["name"])
        if training is None:
            _ = whole.last_layer  # a network without one is refused
            continue
        assert method.objective is not None
        how = training_of(training)
        whole.parameters_named(how.layers)
        method.objective(configured(table, network=True), whole)
        divided(tasks.primary, "primary", how)
        divided(tasks.harmful, "harmful", how)


def _settings(table: Table) -> dict[str, Any]:
    return {k: v for k, v in table.items() if k not in ("name", "label", "training")}


def configured(table: Table, network: bool = False) -> Any:
    """Return a method's settings as its table gives them, checked."""
    return get_method(table["name"]).configure(_settings(table), network=network)


def defended(
    recipe: Recipe, table: Table, model: nn.Module | Tensor, tasks: Tasks, **options: Any
) -> Immunized:
    """Defend a recipe's model by one of its methods; ``options`` are those of ``immunize``."""
    training = recipe.training_for(table)
    head = None if training is None else recipe.head
    given = {"seed": recipe.seed, "head": head, "training": training, **_settings(table), **options}
    return immunize(model, tasks.primary, tasks.harmful, table["name"], **given)


def variants(
    recipe: Recipe,
    table: Table,
    model: nn.Module | Tensor,
    tasks: Tasks,
    seeds: int,
    hardware: Hardware | None = None,
    folder: str | Path | None = None,
    progress: Progress = silent,
) -> tuple[Any, list[Any]]:
    """Return a defence as an audit takes it: one model, or one network for each seed.

    The second value tells how each network was trained; None if its record was lost.
    """
    training = recipe.training_for(table)
    if training is None:
        return defended(recipe, table, model, tasks, progress=progress), []
    assert isinstance(model, nn.Module)
    store = None if folder is None else make_folder(folder)
    given = (*(t.train.identity() for t in (tasks.primary, tasks.harmful)), training, dict(table))
    after = state_digest(model), (hardware or Hardware()).precision
    found, told = list[nn.Module](), list[Any]()
    for seed in range(recipe.seed, recipe.seed + seeds):
        key = key_of(__version__, *given, seed, *after)[:16]
        path = None if store is None else store / f"{table['name']}-{seed}-{key}.safetensors"
        fresh, record = copy.deepcopy(model), None
        if path is not None and _load_kept(fresh, path):
            with suppress(InputError):
                record = Record.load(path.with_suffix(".json"))
        else:
            options = {"seed": seed, "hardware": hardware, "progress": progress}
            result = defended(recipe, table, model, tasks, **options)
            fresh, record = result.model, result.record
            if path is not None:
                record.save(path.with_suffix(".json"))  # first: a network on disk is complete
                write_bytes(path, weights(fresh, record))
        found.append(fresh.cpu().eval())
        told.append(None if record is None else record.figures["details"])
    return found, told


def _load_kept(model: nn.Module, path: Path | None) -> bool:
    """Load a network that was kept; return False if there is none, or a damaged one (warned)."""
    if path is None or not path.exists():
        return False
    try:
        load_weights(model, path)
    except InputError as error:
        warnings.warn(f"{error} The network is trained again.", stacklevel=3)
        return False
    return True


def audit_recipe(
    recipe: Recipe,
    data: str | None = None,
    attacks: str | Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    hardware: Hardware | None = None,
    models_folder: str | Path | None = None,
    *,
    effort: Mapping[str, Any] | None = None,
    run: Run | Mapping[str, Any] = HERE,
) -> Audit:
    """Build what a recipe describes, defend it by each of its methods, and audit them all.

    ``data`` holds the data files, ``models_folder`` keeps trained networks. ``methods`` are labels
    of defences; ``attacks``, ``methods`` and ``effort`` replace what the recipe says.
    """
    run = build(Run, run, "run")
    device_of(run.device)  # before hours of training
    if recipe.audit.get("trials") is not None:
        need_optuna()
    tasks, tables = recipe.tasks(data), tables_of(recipe, methods)
    rehearse(recipe, tables.values(), tasks)
    where = hardware, models_folder, run.progress
    model = original(recipe, tasks, *where)
    models, training = dict[str, Any]({ORIGINAL: model}), dict[str, list[Any]]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)  # the record reports ranks
        for label, table in tables.items():
            seeds = recipe.audit.get("seeds", 3)
            models[label], told = variants(recipe, table, model, tasks, seeds, *where)
            if told:
                training[label] = told
    options = {k: v for k, v in recipe.audit.items() if k not in ("methods", "attacks")}
    result = audit(
        models,
        tasks.primary,
        tasks.attacker,
        tasks.transfer,
        recipe.attacks if attacks is None else attacks,
        defender=tasks.harmful,
        head=recipe.head,
        effort={**options, **(effort or {})},
        run=run,
    )
    figures = {**result.record.figures, **({"training": training} if training else {})}
    record = dataclasses.replace(result.record, seed=recipe.seed, figures=figures)
    return Audit(record.with_settings(recipe=recipe.to_dict()))


def tables_of(recipe: Recipe, methods: Sequence[str] | None = None) -> dict[str, Table]:
    """Return the tables of a recipe's defences by label: those named, or all.

    They are its ``[[audit.methods]]`` and, if it has a label or is alone, its own method.
    """
    found: dict[str, Table] = {}
    own = [recipe.method] if recipe.method else []
    compared = recipe.audit.get("methods", own)
    if compared is not own and "label" in recipe.method:
        compared = [*compared, *own]
    for table in compared:
        label = table.get("label", table["name"])
        found[label if label not in found else f"{label} {len(found) + 1}"] = table
    for name in methods or ():
        if name not in found:
            raise unknown("defence of the recipe", name, found)
    return {label: t for label, t in found.items() if methods is None or label in methods}
