"""The models of a recipe, and their audit: the original, pre-trained if need be, its defences.

Trained networks are kept in a folder under a hash of everything that decides them, so that
an audit, or a second command, trains none of them again.
"""

from __future__ import annotations

import copy
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from immunis.attacks.search import need_optuna
from immunis.audits.audit import Audit, audit
from immunis.core.controls import ORIGINAL
from immunis.core.distributed import rank
from immunis.core.errors import InputError, RankWarning, SettingsError, unknown
from immunis.core.files import make_folder, write_bytes
from immunis.core.hashing import key_of, state_digest
from immunis.core.jobs import HERE, Run
from immunis.core.records import Record
from immunis.core.version import __version__
from immunis.data.sources import Tasks
from immunis.methods import get_method
from immunis.methods.immunize import Immunized, check_foldable, immunize
from immunis.methods.record import feature_gram
from immunis.models.find_head import cut
from immunis.models.weights import load_weights
from immunis.recipes import Recipe
from immunis.report.export import weights
from immunis.theory.gram import check_pair
from immunis.theory.measure import Measurement, measure, measured
from immunis.training import checkpoint as checkpoints
from immunis.training.hardware import Hardware, device_of
from immunis.training.loop import fit
from immunis.training.objective import supervised_only
from immunis.training.settings import training_of
from immunis.training.setup import divided

Progress = Callable[[str, float], None]


def original(
    recipe: Recipe,
    tasks: Tasks,
    hardware: Hardware | None = None,
    folder: str | Path | None = None,
    progress: Progress = lambda what, share: None,
) -> nn.Module | Tensor:
    """What a recipe defends; pre-trained on its primary task where it says so, and kept."""
    model = recipe.extractor(tasks.primary)
    if recipe.pretrain is None:
        return model
    assert isinstance(model, nn.Module)
    store = None if folder is None else make_folder(folder)
    key = key_of(
        __version__, recipe.model, recipe.pretrain, tasks.primary.train.identity(), recipe.seed,
        (hardware or Hardware()).precision,
    )  # fmt: skip
    path = None if store is None else store / f"original-{key[:16]}.safetensors"
    if _kept(model, path):
        return model
    whole = cut(model, tasks.primary.train.first(2), tasks.primary.outputs, recipe.head)
    place = None if store is None else store / f"pretraining-{key[:16]}"
    result = fit(
        whole, supervised_only(), tasks.primary, None, training_of(recipe.pretrain), hardware,
        seed=recipe.seed, folder=place, resume=place is not None,
        progress=lambda _, share: progress("pre-training", share),
    )  # fmt: skip
    if path is not None and place is not None and rank() == 0:
        write_bytes(path, weights(result.model))
        (place / checkpoints.NAME).unlink(missing_ok=True)  # its curves stay
    return result.model


def measure_recipe(
    recipe: Recipe,
    tasks: Tasks,
    hardware: Hardware | None = None,
    folder: str | Path | None = None,
    progress: Progress = lambda what, share: None,
) -> Measurement:
    """Measure a recipe's tasks: the features of its network, if it has one, or the inputs.

    Of a network at most 16,384 samples are read, or eight for each feature.

    Raises:
        SettingsError: for images without a network, or hardware that nothing would use.
    """
    where = hardware or Hardware()
    if not recipe.is_network:
        if recipe.data["source"] == "images":
            raise SettingsError(
                f"{recipe.name} reads images, whose pixels say little: name a network in [model]."
            )
        _check_used(
            where, "inputs are measured as they are. Leave them out, or name a network in [model]"
        )
        return measure(tasks.primary, tasks.harmful)
    if recipe.pretrain is None:
        _check_used(
            dataclasses.replace(where, device="cpu"),
            "no network is trained first. Leave --precision out, or add [pretrain] to the recipe",
        )
    began, device = time.perf_counter(), device_of(where.device)
    check_pair(tasks.primary, tasks.harmful)
    model = original(recipe, tasks, hardware, folder, progress)
    whole = cut(model, tasks.primary.train.first(2), tasks.primary.outputs, recipe.head).on(device)
    pair = tasks.primary, tasks.harmful
    return measured((feature_gram(whole, pair[0]), feature_gram(whole, pair[1])), pair, began)


def rehearse(recipe: Recipe, tables: Iterable[Mapping[str, Any]], tasks: Tasks) -> None:
    """Refuse defences that do not fit the network or the data, before the network is pre-trained.

    Raises:
        SettingsError: for layers, depths or settings that the network does not have.
        InputError: for too few rows to hold any out, or a network that no map can be folded into.
    """
    if recipe.pretrain is None:
        return
    model = recipe.extractor(tasks.primary)
    whole = cut(model, tasks.primary.train.first(2), tasks.primary.outputs, recipe.head)
    for table in tables:
        training, method = recipe.training_for(table), get_method(table["name"])
        if training is None:
            check_foldable(whole)
            continue
        assert method.objective is not None
        how = training_of(training)
        whole.parameters_named(how.layers)
        method.objective(method.configure(_settings(table), network=True), whole)
        divided(tasks.primary, "primary", how)
        divided(tasks.harmful, "harmful", how)


def _settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """What a table says of the method itself."""
    return {k: v for k, v in table.items() if k not in ("name", "label", "training")}


def trains(recipe: Recipe, hardware: Hardware) -> bool:
    """Whether a recipe's method trains its network, rather than being solved.

    Raises:
        SettingsError: for hardware that nothing of the recipe would use.
    """
    trained = recipe.training_for(recipe.method) is not None
    if not trained and recipe.pretrain is None:
        solved = f"method {recipe.method['name']!r} is solved"
        _check_used(hardware, f"{solved}. Leave them out, or add [training] to the recipe")
    return trained


def _check_used(hardware: Hardware, why: str) -> None:
    """Refuse hardware that is asked for where nothing is trained on it."""
    if hardware not in (Hardware(), Hardware(device="auto")):
        raise SettingsError(
            "--device, --devices, --nodes, --strategy, --precision and --compile are for networks; "
            f"here {why}."
        )


def defended(
    recipe: Recipe,
    table: Mapping[str, Any],
    model: nn.Module | Tensor,
    tasks: Tasks,
    *,
    seed: int | None = None,
    hardware: Hardware | None = None,
    resume: bool = False,
    folder: str | Path | None = None,
    wandb: str | None = None,
    progress: Progress = lambda what, share: None,
) -> Immunized:
    """Defend a recipe's model by one of its methods."""
    name, settings = table["name"], _settings(table)
    training = recipe.training_for(table)
    return immunize(
        model, tasks.primary, tasks.harmful, name,
        head=None if training is None else recipe.head, training=training, hardware=hardware,
        folder=folder, resume=resume, wandb=wandb, seed=recipe.seed if seed is None else seed,
        progress=progress, **settings,
    )  # fmt: skip


def variants(
    recipe: Recipe,
    table: Mapping[str, Any],
    model: nn.Module | Tensor,
    tasks: Tasks,
    seeds: int,
    hardware: Hardware | None = None,
    folder: str | Path | None = None,
    progress: Progress = lambda what, share: None,
) -> tuple[Any, list[Any]]:
    """A defence as an audit takes it, one model or for a trained network one for each seed.

    Beside it how each network was trained, evaluation by evaluation; None where that was lost.
    """
    if recipe.training_for(table) is None:
        return defended(recipe, table, model, tasks, progress=progress), []
    assert isinstance(model, nn.Module)
    store = None if folder is None else make_folder(folder)
    found, told = list[nn.Module](), list[Any]()
    for seed in range(recipe.seed, recipe.seed + seeds):
        key = key_of(
            __version__, tasks.primary.train.identity(), tasks.harmful.train.identity(),
            recipe.training_for(table), dict(table), seed, state_digest(model),
            (hardware or Hardware()).precision,
        )  # fmt: skip
        stem = f"{table['name']}-{seed}-{key[:16]}"
        path = None if store is None else store / f"{stem}.safetensors"
        fresh = copy.deepcopy(model)
        if path is not None and _kept(fresh, path):
            record = _record_beside(path)
        else:
            result = defended(
                recipe, table, model, tasks, seed=seed, hardware=hardware, progress=progress
            )
            fresh, record = result.model, result.record
            if path is not None:
                record.save(path.with_suffix(".json"))  # first: a network that is there is done
                write_bytes(path, weights(fresh, record))
        found.append(fresh.cpu().eval())
        told.append(None if record is None else record.figures["details"])
    return found, told


def _record_beside(path: Path) -> Record | None:
    """The record of a network that was kept, if it can be read."""
    try:
        return Record.load(path.with_suffix(".json"))
    except InputError:
        return None


def _kept(model: nn.Module, path: Path | None) -> bool:
    """Load a network that was kept; False where there is none, or (which is said) a damaged one."""
    if path is None or not path.exists():
        return False
    try:
        load_weights(model, path)
    except InputError as error:
        warnings.warn(f"{error} The network is trained again.", stacklevel=3)
        return False
    return True


def tables_of(recipe: Recipe, methods: Sequence[str] | None = None) -> dict[str, Mapping[str, Any]]:
    """Tables of a recipe's defences by label: those named, or all.

    They are its ``[[audit.methods]]`` and, where it has a label or is alone, its own method.

    Raises:
        SettingsError: for a name that is none of them.
    """
    found: dict[str, Mapping[str, Any]] = {}
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


def audit_recipe(
    recipe: Recipe,
    data: str | None = None,
    attacks: str | Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    *,
    hardware: Hardware | None = None,
    models_folder: str | Path | None = None,
    effort: Mapping[str, Any] | None = None,
    run: Run | Mapping[str, Any] = HERE,
) -> Audit:
    """Build what a recipe describes, defend it by each of its methods, and audit them all.

    ``methods`` names those of the recipe's defences to audit, by label where they have one. Trained
    networks are kept in ``models_folder``; ``effort`` replaces parts of what the recipe says, and
    ``run`` is as in ``audit``.
    """
    run = Run.of(run)
    device_of(run.device)  # before hours of training
    if recipe.audit.get("trials") is not None:
        need_optuna()
    tasks = recipe.tasks(data)
    options = {key: value for key, value in recipe.audit.items() if key != "methods"}
    where = hardware, models_folder, run.progress
    tables = tables_of(recipe, methods)
    rehearse(recipe, tables.values(), tasks)
    model = original(recipe, tasks, *where)
    models, training = dict[str, Any]({ORIGINAL: model}), dict[str, list[Any]]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)  # ranks are reported
        for label, table in tables.items():
            seeds = options.get("seeds", 3)
            models[label], told = variants(recipe, table, model, tasks, seeds, *where)
            training |= {label: told} if told else {}
    own = options.pop("attacks", "standard")
    chosen = own if attacks is None else attacks
    result = audit(
        models, tasks.primary, tasks.attacker, tasks.transfer, chosen,
        defender=tasks.harmful, head=recipe.head, effort={**options, **(effort or {})}, run=run,
    )  # fmt: skip
    figures = {**result.record.figures, **({"training": training} if training else {})}
    record = dataclasses.replace(result.record, seed=recipe.seed, figures=figures)
    return Audit(record.with_settings(recipe=recipe.to_dict()))
