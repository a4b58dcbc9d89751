"""What every attacker pays: attacks × models × seeds, controls included, worst case first."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from immunis._version import __version__
from immunis.attacks import ATTACKS, select
from immunis.attacks.base import (
    Arena,
    Attack,
    Data,
    NotApplicableError,
    Samples,
    count_flops,
    score,
    search,
)
from immunis.attacks.ridge import ridge_probe
from immunis.errors import InputError, RankWarning, SettingsError
from immunis.features import Cut, cut, untrained
from immunis.gram import gram_of
from immunis.immunize import immunize
from immunis.measure import data_figures
from immunis.recipes import Recipe
from immunis.records import Record
from immunis.regularizers import rho_of_gram
from immunis.spectrum import Spectrum
from immunis.sweeps import Job, key_of, sweep
from immunis.tasks import Task
from immunis.verdict import predictors, summarise, worst_case

CONTROL, SCRATCH = "untrained", "from scratch"
TRANSFER = ("gd_line_search", "finetune_all")
BROKEN = 0.1  # share of the original's primary score above chance below which a model is broken
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class WorstCase:
    """The attack that gains most from a model over the same attack on the untrained control.

    Attributes:
        residual_advantage: share of that help kept, over the untrained control; NaN where the
            original gives none, or the model is broken.
        overall: the same for an attacker who picks the best attack for each model.
        attack: which attack.
        accuracy: its mean test score (accuracy, or R²).
        highest_attack: the attack with the highest score, which may be another.
        highest_accuracy: its mean test score.
        broken: the model no longer does its primary task; it is not immune.
    """

    residual_advantage: float
    overall: float
    attack: str | None
    accuracy: float
    highest_attack: str | None
    highest_accuracy: float
    broken: bool


@dataclass(frozen=True)
class Audit:
    """The result of an audit; everything is in its record."""

    record: Record

    @property
    def worst_case(self) -> dict[str, WorstCase]:
        """The worst case of every model but the controls."""
        keys = WorstCase.__dataclass_fields__
        return {
            name: WorstCase(**{key: row.get(key) for key in keys})
            for name, row in self.record.figures["worst_case"].items()
        }

    def to_json(self) -> str:
        """Return the record as JSON."""
        return self.record.to_json()


def audit(
    models: Mapping[str, Any],
    primary: Task,
    harmful: Task,
    transfer: Sequence[Task] = (),
    attacks: str | Sequence[str] = "standard",
    *,
    defender: Task | None = None,
    original: str = "original",
    head: str | None = None,
    seeds: int = 3,
    budget: int | None = None,
    trials: int | None = None,
    workers: int = 1,
    cluster: str | None = None,
    folder: str | Path | None = None,
    device: str = "cpu",
    progress: Progress = lambda what, share: None,
) -> Audit:
    """Run attacks against models and report what each attacker pays.

    Args:
        models: by name, ``original`` among them: modules in evaluation mode, matrices θ, pairs
            ``(extractor, head)`` or results of ``immunize``.
        primary: the task the models are for.
        harmful: the attacker's task: training data of their own, and test data.
        transfer: harmless other tasks that should stay learnable.
        attacks: ``"quick"``, ``"standard"``, ``"full"``, or a list of names.
        defender: the harmful sample the defence was made with; rows it shares with the
            attacker's are refused. Left out, the audit says that this was not checked.
        original: which model is the undefended one.
        head: name of the models' linear head where it cannot be guessed.
        seeds: repeats of each attack, at least 1; intervals need 3.
        budget: largest number of optimizer steps of a run; the preset's if left out.
        trials: settings that optuna tries per attack; the fixed grid if left out.
        workers: processes.
        cluster: address of a Ray cluster.
        folder: where finished attacks are kept, to resume an interrupted audit.
        device: where models are read and fine-tuned; anything but ``cpu`` wants one worker.
        progress: called with what was done and the share of the whole.

    Raises:
        InputError: for data or models that cannot be audited.
        SettingsError: for unknown names or impossible settings.
    """
    start = time.perf_counter()
    chosen, preset = select(attacks)
    budget = preset if budget is None else budget
    if budget < 1 or seeds < 1:
        raise SettingsError(f"budget={budget}, seeds={seeds}: both need to be at least 1.")
    if original not in models:
        raise InputError(
            f"models are {', '.join(models) or 'none'}; the undefended one must be among them, as "
            f"{original!r} or by the name given as original=."
        )
    if {CONTROL, SCRATCH} & set(models):
        raise InputError(f"{CONTROL!r} and {SCRATCH!r} are the names of the audit's own controls.")
    disjoint = _disjoint(harmful, defender)
    samples = _samples(harmful)
    example = torch.from_numpy(samples.train.inputs[:2])
    cuts = {
        name: cut(model, example, primary.outputs, head, name) for name, model in models.items()
    }
    for each in cuts.values():
        each.model.to(device)
    fresh = {seed: untrained(cuts[original], seed) for seed in range(seeds)}
    lineup = [(name, cuts[name], seed) for name in cuts for seed in range(seeds)]
    lineup += [(CONTROL, fresh[seed], seed) for seed in range(seeds)]
    reader = _Reader(device)
    progress("reading features", 0.0)
    others = [_samples(task) for task in transfer]
    harmless = others[0] if others else None
    jobs: dict[str, Job] = {}
    index: dict[tuple[str, str, str, int], str] = {}

    def enlist(what: str, task: Samples, attack: Attack, name: str, model: Cut, seed: int) -> None:
        layers = tuple(attack.layers(model))
        cache = {layer: reader.read(name, model, task, layer) for layer in layers}
        arena = Arena(
            model, task.kind, task.outputs, task.train, task.test, cache,
            reader.flops(model, task) if layers else 0.0, harmless, budget, seed, device,
        )  # fmt: skip
        key = key_of(
            __version__, attack.name, reader.digest(model), reader.digest_data(task), seed, budget,
            trials, what == "harmful" and harmless is not None,
        )  # fmt: skip
        jobs[key] = Job(run_attack, (attack.name, arena, trials), f"{attack.name} on {name}")
        index[what, attack.name, name, seed] = key

    for attack in chosen:
        for name, model, seed in lineup:
            enlist("harmful", samples, attack, name, model, seed)
    for seed in range(seeds):  # training from scratch: fine-tuning the untrained control
        enlist("harmful", samples, ATTACKS["finetune_all"], CONTROL, fresh[seed], seed)
    for number, held in enumerate(others):
        for attack_name in TRANSFER:
            for name, model, seed in lineup:
                enlist(f"transfer {number}", held, ATTACKS[attack_name], name, model, seed)

    results = sweep(jobs, folder=folder, workers=workers, cluster=cluster, progress=progress)

    def outcomes(what: str, attack: str) -> dict[str, list[Any]]:
        return {
            name: [results[index[what, attack, name, seed]] for seed in range(seeds)]
            for name in (*cuts, CONTROL)
            if (what, attack, name, 0) in index
        }

    chance = _chance(samples)
    table = {
        attack.name: summarise(outcomes("harmful", attack.name), original, CONTROL, chance)
        for attack in chosen
    }
    described = _describe(cuts, primary, samples, reader, original)
    scratch = outcomes("harmful", "finetune_all")[CONTROL]
    cases = {
        name: {
            **worst_case(table, name, original, CONTROL),
            "broken": described[name]["broken"],
        }
        for name in cuts
    }
    for row in cases.values():
        if row["broken"]:
            row["residual_advantage"] = row["overall"] = math.nan
    figures = {
        "worst_case": cases,
        "models": described,
        "attacks": table,
        "controls": {
            "names": [original, CONTROL, SCRATCH],
            SCRATCH: summarise({SCRATCH: scratch}, SCRATCH, CONTROL, chance)[SCRATCH],
        },
        "chance": chance,
        "transfer": {
            task.name: {
                attack: summarise(
                    outcomes(f"transfer {number}", attack),
                    original,
                    CONTROL,
                    _chance(_samples(task)),
                )
                for attack in TRANSFER
            }
            for number, task in enumerate(transfer)
        },
        "predictors": predictors(table, described, list(cuts)),
        "disjoint": disjoint,
        "seconds": {
            attack: sum(row.get("seconds", 0.0) for row in rows.values())
            for attack, rows in table.items()
        },
    }
    return Audit(
        Record(
            kind="audit",
            name=f"{primary.name} / {harmful.name}: {', '.join(cuts)}",
            figures=figures,
            settings={
                "attacks": [attack.name for attack in chosen],
                "budget": budget,
                "seeds": seeds,
                "search": "grid" if trials is None else f"optuna, {trials} trials",
                "original": original,
            },
            data=data_figures(
                primary=primary,
                attacker=harmful,
                **{f"transfer {i}": task for i, task in enumerate(transfer)},
            ),
            seed=0,
            seconds=time.perf_counter() - start,
        )
    )


def audit_recipe(
    recipe: Recipe, data: str | None = None, attacks: str | Sequence[str] | None = None, **more: Any
) -> Audit:
    """Build what a recipe describes, defend it by each of its methods, and audit them all."""
    tasks = recipe.tasks(data)
    model = recipe.extractor(tasks.primary)
    options = dict(recipe.audit)
    models: dict[str, Any] = {"original": model}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)  # ranks are reported
        for table in options.pop("methods", [recipe.method] if recipe.method else []):
            settings = dict(table)
            method = settings.pop("name")
            label = method if method not in models else f"{method} {len(models)}"
            models[label] = immunize(
                model, tasks.primary, tasks.harmful, method, seed=recipe.seed, **settings
            )
    chosen = attacks or options.pop("attacks", "standard")
    options.pop("attacks", None)
    result = audit(
        models, tasks.primary, tasks.attacker, tasks.transfer, chosen,
        defender=tasks.harmful, **options, **more,
    )  # fmt: skip
    return Audit(result.record.with_settings(recipe=recipe.to_dict()))


def run_attack(name: str, arena: Arena, trials: int | None) -> dict[str, Any]:
    """Run one attack on one arena; what fails is recorded as failed, with the reason."""
    attack, started = ATTACKS[name], time.perf_counter()
    try:
        outcome = search(attack, arena, trials)
    except NotApplicableError as reason:
        return {"status": "not applicable", "reason": str(reason)}
    except SettingsError:
        raise  # the request is wrong, not the attack
    except Exception as error:  # an attack is somebody's code: one failure must not end the audit
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    return {
        "status": "done",
        "settings": dict(outcome.settings),
        "curve": [vars(point) for point in outcome.points],
        "trials": outcome.trials,
        "search_flops": outcome.search_flops,
        "seconds": time.perf_counter() - started,
        "notes": outcome.notes,
    }


def _disjoint(attacker: Task, defender: Task | None) -> dict[str, Any]:
    if defender is None:
        return {"checked": False, "shared": None}
    known = set(defender.train.row_hashes())
    shared = sum(row in known for row in attacker.train.row_hashes())
    if attacker.test is not None:
        shared += sum(row in known for row in attacker.test.row_hashes())
    if shared:
        raise InputError(
            f"{shared} sample(s) of {attacker.name} are also in {defender.name}: the attacker must "
            "hold data that the defence has never seen, or the audit flatters it. Split the data."
        )
    return {"checked": True, "shared": 0}


def _samples(task: Task) -> Samples:
    if task.test is None:
        raise InputError(f"{task.name}: an audit scores on test data; give Task(test=...).")
    if task.kind == "classification" and len(task.classes) < 2:
        raise InputError(f"{task.name} has a single class; an attack on it says nothing.")

    def data(split: Any) -> Data:
        inputs, labels = split.tensors()
        if task.kind == "classification":
            return Data(_array(inputs), _array(task.positions(labels)))
        return Data(_array(inputs), _array(task.targets(labels)))

    return Samples(task.kind, task.outputs, data(task.train), data(task.test))


def _array(values: Tensor) -> np.ndarray:
    return np.ascontiguousarray(values.detach().cpu().numpy())


def _chance(task: Samples) -> float:
    """Test score of the best constant answer: the commonest class, or R² = 0."""
    if task.kind == "regression":
        return 0.0
    commonest = np.bincount(task.train.labels).argmax()
    return float((task.test.labels == commonest).mean())


class _Reader:
    """Reads features once per model and layer, in batches that fit."""

    def __init__(self, device: str) -> None:
        self.device, self.batch = device, 512
        self._cache: dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray]] = {}
        self._digests: dict[int, tuple[Any, str]] = {}
        self._flops: dict[str, float] = {}

    def digest(self, model: Cut) -> str:
        """Hash of a model's structure and weights."""
        if id(model) not in self._digests:
            total = hashlib.sha256(repr((model.model, model.head)).encode())
            for name, tensor in sorted(model.model.state_dict().items()):
                raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
                total.update(name.encode() + raw.numpy().tobytes())
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
        """Features of some inputs at a layer; halves the batch when memory runs out."""
        while True:
            try:
                blocks = torch.from_numpy(inputs).split(self.batch)
                found = torch.cat([self._forward(model, block, layer) for block in blocks])
                break
            except (MemoryError, torch.OutOfMemoryError):
                if self.batch == 1:
                    raise
                self.batch //= 2
                warnings.warn(
                    f"out of memory while reading {name}; going on with batches of {self.batch}.",
                    stacklevel=2,
                )
        if not bool(torch.isfinite(found).all()):
            raise InputError(
                f"{name} gives NaN or infinite features at layer {layer or 'features'}; it cannot "
                "be audited. Check its weights and the scale of its inputs."
            )
        return _array(found)

    @torch.no_grad()
    def _forward(self, model: Cut, inputs: Tensor, layer: str) -> Tensor:
        return model.read(inputs.to(model.example), (layer,))[0].cpu()


def _describe(
    cuts: Mapping[str, Cut], primary: Task, harmful: Samples, reader: _Reader, original: str
) -> dict[str, Any]:
    """Primary score, κ, RIR against the original and ρ of every model."""
    held = _samples(primary) if primary.test is not None else None
    inputs, labels = primary.train.tensors()
    targets = primary.targets(labels)
    chance = _chance(held) if held is not None else 0.0
    rows: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)  # ranks are reported
        for name, model in cuts.items():
            train = torch.from_numpy(reader.features(name, model, _array(inputs)))
            moments = gram_of(train, targets)
            features, _ = reader.read(name, model, harmful, "")
            one_hot = _targets(harmful)
            attacked = gram_of(torch.from_numpy(features), one_hot)
            spectra = Spectrum.of(moments), Spectrum.of(attacked)
            rows[name] = {
                "primary": _primary_score(name, model, moments, held, reader),
                "kappa_primary": spectra[0].condition_number,
                "kappa_harmful": spectra[1].condition_number,
                "rank_primary": spectra[0].rank,
                "rank_harmful": spectra[1].rank,
                "dimension": spectra[0].dimension,
                "rho": rho_of_gram(attacked),
            }
    base = rows[original]
    for row in rows.values():
        row["rir"] = (row["kappa_harmful"] / base["kappa_harmful"]) / (
            row["kappa_primary"] / base["kappa_primary"]
        )
        bar = chance + BROKEN * (base["primary"] - chance) if base["primary"] is not None else None
        row["broken"] = bar is not None and row["primary"] <= bar
    return rows


def _targets(task: Samples) -> Tensor:
    labels = torch.from_numpy(np.array(task.train.labels))
    if task.kind == "regression":
        return labels.double()
    return torch.nn.functional.one_hot(labels.long(), task.outputs).double()


def _primary_score(
    name: str, model: Cut, moments: Any, held: Samples | None, reader: _Reader
) -> float | None:
    """Test score with the model's own head, or with a ridge head where it has none."""
    if held is None:
        return None
    features = torch.from_numpy(reader.features(name, model, held.test.inputs))
    layer = model.head_layer
    if layer is not None:
        with torch.no_grad():
            outputs = layer(features.to(layer.weight.device, layer.weight.dtype)).cpu()
    else:
        weights, bias = ridge_probe(moments)
        outputs = features.double() @ weights + bias
    labels = torch.from_numpy(np.array(held.test.labels))
    return score(outputs, labels, held.kind)
