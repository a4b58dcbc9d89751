"""What every attacker pays: attacks × models × seeds, controls included, worst case first."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from immunis.attacks import ATTACKS, check_space, select
from immunis.audits.describe import describe
from immunis.audits.feature_cache import Reader, chance_of, disjoint_rows, samples_of
from immunis.audits.jobs import Jobs
from immunis.audits.statistics import predictors, summarise, worst_case
from immunis.core.controls import CONTROL, SCRATCH
from immunis.core.errors import InputError
from immunis.core.jobs import HERE, Run, sweep
from immunis.core.records import Record
from immunis.core.settings import build, whole
from immunis.data.task import Task
from immunis.models.find_head import cut
from immunis.models.zoo import untrained
from immunis.theory.measure import data_figures
from immunis.training.hardware import device_of

TRANSFER = ("gd_line_search", "finetune_all")


@dataclass(frozen=True)
class Effort:
    """What each attacker may spend.

    Attributes:
        seeds: repeats of each attack; intervals need 3.
        budget: largest number of optimizer steps of one run; None takes the preset's.
        trials: settings that optuna tries for each attack; None searches the fixed grid.
        space: values that attacks may search, by setting, for example
            ``{"optimizer": ["adamw"]}``; other settings keep their grids.
    """

    seeds: int = 3
    budget: int | None = None
    trials: int | None = None
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the numbers, and the names of the settings."""
        for name in ("seeds", "budget", "trials"):
            value = getattr(self, name)
            if value is not None or name == "seeds":
                object.__setattr__(self, name, whole(value, name, 1))
        check_space(self.space)


STANDARD = Effort()


@dataclass(frozen=True)
class WorstCase:
    """The attack that gains most from a model over the same attack on the untrained control.

    Accuracies are mean test scores (accuracy, or R²); ``highest_attack`` scores highest.

    Attributes:
        residual_advantage: share of the original's help that is left; NaN if it gives none.
        overall: the same for an attacker who picks the best attack for each model.
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
    effort: Effort | Mapping[str, Any] = STANDARD,
    run: Run | Mapping[str, Any] = HERE,
) -> Audit:
    """Run attacks against models and report what each attacker pays.

    Args:
        models: by name, ``original`` among them: modules in evaluation mode, matrices θ, pairs
            ``(extractor, head)`` or results of ``immunize``; or a list with one of these for
            each seed, for a defence that was itself made with several seeds.
        primary: the task the models are for.
        harmful: the attacker's task: training data of their own, and test data.
        transfer: harmless other tasks that should stay learnable.
        attacks: ``"quick"``, ``"standard"``, ``"full"``, or a list of names.
        defender: the harmful sample the defence was made with; rows it shares with the
            attacker's are refused. Left out, the audit says that this was not checked.
        original: which model is the undefended one.
        head: name of the models' linear head where it cannot be guessed.
        effort: what each attacker may spend; a mapping of its attributes will do.
        run: where the attacks run; a mapping of its attributes will do. With a folder, finished
            attacks are kept there and a second audit skips them. Several workers share one
            accelerator.

    Raises:
        InputError: for data or models that cannot be audited.
        SettingsError: for unknown names or impossible settings.
    """
    start = time.perf_counter()
    chosen, preset = select(attacks)
    effort, run = build(Effort, effort, "effort"), build(Run, run, "run")
    seeds, budget = range(effort.seeds), preset if effort.budget is None else effort.budget
    device = device_of(run.device)
    _check_names(models, original)
    disjoint = disjoint_rows(harmful, primary, defender)
    samples = samples_of(harmful)
    example = torch.from_numpy(samples.train.inputs[:2])
    cuts = {}
    for name, model in models.items():
        of = model if isinstance(model, list) else [model]
        if isinstance(model, list) and len(of) != effort.seeds:
            raise InputError(
                f"{name}: {len(of)} models for {effort.seeds} seeds; give one for each."
            )
        cuts[name] = [cut(each, example, primary.outputs, head, name).on(device) for each in of]
    fresh = [untrained(cuts[original][0], seed) for seed in seeds]
    lineup = [
        (name, of[seed % len(of)], seed)
        for name, of in {**cuts, CONTROL: fresh}.items()
        for seed in seeds
    ]
    reader = Reader(example)
    run.progress("reading features", 0.0)
    described = describe(cuts, primary, samples, reader, original)
    tasks = {"harmful": samples} | {f"transfer {i}": samples_of(t) for i, t in enumerate(transfer)}
    elsewhere = run.workers > 1 or run.cluster is not None
    limits = budget, effort.trials, effort.space
    jobs = Jobs(reader, *limits, tasks.get("transfer 0"), device, elsewhere)
    for what, task in tasks.items():
        for attack in chosen if what == "harmful" else [ATTACKS[name] for name in TRANSFER]:
            for each in lineup:
                jobs.add(what, task, attack, *each)
    for seed in seeds:  # training from scratch is fine-tuning the untrained control
        jobs.add("harmful", samples, ATTACKS["finetune_all"], CONTROL, fresh[seed], seed)
    results = sweep(jobs.todo, run, lasting=_is_done)

    def judged(what: str, attack: str) -> dict[str, Any]:
        outcomes = jobs.outcomes(results, what, attack)
        return summarise(outcomes, original, CONTROL, chance_of(tasks[what]))

    chance = chance_of(samples)
    table = {attack.name: judged("harmful", attack.name) for attack in chosen}
    scratch = {SCRATCH: jobs.outcomes(results, "harmful", "finetune_all")[CONTROL]}
    cases = {name: worst_case(table, name, original, CONTROL) for name in described}
    for name, case in cases.items():  # a broken model has no residual advantage: it is not immune
        case["broken"] = described[name]["broken"]
        case |= {"residual_advantage": math.nan, "overall": math.nan} if case["broken"] else {}
    alone = summarise(scratch, SCRATCH, CONTROL, chance)[SCRATCH]
    others = {f"transfer {i}": task for i, task in enumerate(transfer)}
    figures = {
        "worst_case": cases,
        "models": described,
        "attacks": table,
        "controls": {"names": [original, CONTROL, SCRATCH], SCRATCH: alone},
        "chance": chance,
        "classes": primary.class_names,
        "transfer": {
            task.name: {name: judged(what, name) for name in TRANSFER}
            for what, task in others.items()
        },
        "predictors": predictors(table, described, list(cuts)),
        "disjoint": disjoint,
        "seconds": {n: sum(r.get("seconds", 0.0) for r in table[n].values()) for n in table},
    }
    settings = {
        "attacks": [attack.name for attack in chosen],
        "not_run": {a.name: a.summary for a in ATTACKS.values() if a not in chosen},
        "budget": budget,
        "seeds": effort.seeds,
        "search": "grid" if effort.trials is None else f"optuna, {effort.trials} trials",
        "space": dict(effort.space),
        "original": original,
    }
    name = f"{primary.name} / {harmful.name}: {', '.join(cuts)}"
    data = data_figures(primary=primary, attacker=harmful, **others)
    seconds = time.perf_counter() - start
    return Audit(Record("audit", name, figures, settings, data, seed=0, seconds=seconds))


def _is_done(found: Any) -> bool:
    return isinstance(found, dict) and {"curve", "trials"} <= found.keys()


def _check_names(models: Mapping[str, Any], original: str) -> None:
    """Raise InputError unless models come by name, the undefended one among them."""
    if not isinstance(models, Mapping):
        came = f"models came as a {type(models).__name__}"
        raise InputError(f"{came}; expected them by name, as in {{{original!r}: model}}.")
    if original not in models:
        raise InputError(
            f"models are {', '.join(models) or 'none'}; expected the undefended one among them, as "
            f"{original!r}; or give its name as original=."
        )
    if {CONTROL, SCRATCH} & set(models):
        raise InputError(f"{CONTROL!r} and {SCRATCH!r} are the audit's own controls; rename yours.")
