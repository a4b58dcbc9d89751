"""What every attacker pays: attacks × variants × seeds, controls included, worst case first."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from immunis.attacks import ATTACKS, BUDGETS, GROUPS, check_space, select
from immunis.attacks.arrays import Samples, tensor
from immunis.attacks.contract import check_values
from immunis.attacks.halving import TOTAL
from immunis.audits.describe import Reader, describe, primary_hits
from immunis.audits.disjoint import disjoint_rows
from immunis.audits.halves import half_of
from immunis.audits.ledger import enter
from immunis.audits.lineup import Jobs, is_linear, lineup
from immunis.audits.room import room_of
from immunis.audits.samples import PROBES, over_trainings, sample_job
from immunis.audits.stated import in_time
from immunis.audits.statistics.claims import factors
from immunis.audits.statistics.predictors import predictors
from immunis.audits.statistics.summary import non_inferiority, summarise, worst_case
from immunis.core.disk_arrays import Shelf, check_room
from immunis.core.display import Shown
from immunis.core.errors import InputError
from immunis.core.files import key_of
from immunis.core.jobs import HERE, Progress, Run, sweep
from immunis.core.progress import with_progress
from immunis.core.records import Record
from immunis.core.settings import build, require, require_score, require_steps, whole
from immunis.core.shapes import CONTROL, SCRATCH
from immunis.data.checks import hash_rows
from immunis.data.scale import warn_if_uneven
from immunis.data.task import Task, check_tasks
from immunis.theory.definition import TOLERANCE
from immunis.theory.measure import data_figures
from immunis.training.settings import device_of

TRANSFER = ("gd_line_search", "finetune_all")


@dataclass(frozen=True)
class Effort:
    """What each attacker may spend.

    Attributes:
        seeds: attackers, each against every variant. One has all of the attacker's rows; of
            several each has its own four fifths. A claim needs two, and 5 different runs of a
            model.
        budget: largest number of optimizer steps of one run: for all attacks, or by kind, as in
            ``{"probes": 250, "tuning": 100, "retraining": 300}``; what is left out is the preset's.
            A search of fine-tuning takes six such runs.
        trials: settings that optuna tries for each attack; None searches the fixed grid.
        space: values that attacks may search, by setting, for example
            ``{"optimizer": ["adamw"]}``; other settings keep their grids.
    """

    seeds: int = 3
    budget: int | Mapping[str, int] | None = None
    trials: int | None = None
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the numbers, and the names of the settings."""
        for name in ("seeds", "trials"):
            value = getattr(self, name)
            if value is not None or name == "seeds":
                object.__setattr__(self, name, whole(value, name, 1))
        most = BUDGETS["standard"].changed(self.budget).most
        require_steps(self.seeds, most)
        check_space(self.space)
        for name, values in self.space.items():
            check_values(values, name, "space")


STANDARD = Effort()


@dataclass(frozen=True)
class WorstCase:
    """The attack that gains most from a model over the same attack on the untrained control.

    Scores are mean test scores (accuracy, or R²); ``highest_attack`` scores highest.

    Attributes:
        gain: the score of ``attack`` above the same attack on untrained features.
        residual_advantage: the largest share of the original's help that any attack keeps, that of
            ``share_attack``; NaN if the original helps none of them.
        overall: the same for an attacker who picks the best attack for each model.
        broken: the model lost its primary task; it is not immune.
    """

    gain: float
    attack: str | None
    accuracy: float
    residual_advantage: float
    share_attack: str | None
    overall: float
    highest_attack: str | None
    highest_accuracy: float
    broken: bool


@dataclass(frozen=True)
class Audit(Shown):
    """The result of an audit; everything is in its record."""

    record: Record

    @property
    def worst_case(self) -> dict[str, WorstCase]:
        """The worst case of every model but the controls."""
        keys = WorstCase.__dataclass_fields__
        return {
            name: WorstCase(**{key: _known(key, row.get(key)) for key in keys})
            for name, row in self.record.figures["worst_case"].items()
        }

    def to_json(self) -> str:
        """Return the record as JSON."""
        return self.record.to_json()


def _known(key: str, value: Any) -> Any:
    """Return NaN for a number that is not defined."""
    return math.nan if value is None and not key.endswith("attack") else value


@with_progress
def audit(
    models: Mapping[str, Any],
    primary: Task,
    harmful: Task,
    transfer: Sequence[Task] = (),
    attacks: str | Sequence[str] = "standard",
    *,
    defender: Task | None = None,
    original: str = "original",
    plain: str | None = None,
    tolerance: float = TOLERANCE,
    threshold: float | None = None,
    final: bool = False,
    head: str | None = None,
    effort: Effort | Mapping[str, Any] = STANDARD,
    run: Run | Mapping[str, Any] = HERE,
    progress: Progress | bool = True,
) -> Audit:
    """Run attacks against models and report what each attacker pays.

    Args:
        models: by name, ``original`` among them: modules in evaluation mode, matrices θ, pairs
            ``(extractor, head)`` or results of ``immunize``; or a list of variants, for a model
            that was trained several times. Every variant meets every seed. The original may be a
            list too: then the others are made from its models in their order, or say from which
            (``audits.lineup.Variant``).
        primary: the task the models are for.
        harmful: the attacker's task: training data of their own, and test data.
        transfer: harmless other tasks that should stay learnable.
        attacks: ``"quick"``, ``"standard"``, ``"full"``, or a list of names.
        defender: the harmful sample the defence was made with; rows it shares with the
            attacker's are refused. Left out, the audit says that this was not checked.
        original: which model is the undefended one.
        plain: which model had the same training without what defends. Primary scores are compared
            with it as well.
        tolerance: how far the primary score may fall. A model that loses more than four of these
            and two standard errors is broken, as for ``immunize``.
        threshold: the score that no attacker may pass (0.7 for 70%, or R²). State it here, before
            the attacks run: the record holds it, and a card says of any other one that it was
            stated after the audit.
        final: score the final half of the harmful test rows, and enter the audit in the ledger.
            Otherwise the development half is scored.
        head: name of the models' linear head where it cannot be guessed.
        effort: what each attacker may spend; a mapping of its attributes will do.
        run: where the attacks run; a mapping of its attributes will do. With a folder, finished
            attacks are kept there and a second audit skips them. Several workers share one
            accelerator.
        progress: True for a bar on a terminal and lines elsewhere, False for neither, or a
            function of a label and the share of attacks done; by default that of ``run``.

    Raises:
        InputError: for data or models that cannot be audited.
        SettingsError: for unknown names or impossible settings.
    """
    start = time.perf_counter()
    listed = isinstance(transfer, list | tuple)
    if not (listed and all(isinstance(each, Task) for each in transfer)):
        raise InputError("transfer: expected a list of Tasks; names of attacks go with attacks=.")
    check_tasks(primary=primary, harmful=harmful)
    chosen, preset = select(attacks)
    assert callable(progress)
    effort = build(Effort, effort, "effort")
    run = replace(build(Run, run, "run"), progress=progress)
    budget = preset.changed(effort.budget)
    device = device_of(run.device)
    if plain is not None and plain not in models:
        raise InputError(f"plain={plain!r} names no model; they are {', '.join(models)}.")
    check_room(room_of(harmful, primary, *transfer), run.folder)
    require(0 <= tolerance < math.inf, f"tolerance={tolerance}: expected 0 or more.")
    require_score(threshold, "threshold", harmful.kind)
    disjoint = disjoint_rows(harmful, primary, defender)
    with Shelf(run.folder) as shelf:
        samples, scored = half_of(Samples.of(harmful, shelf), final, harmful.name, shelf)
        example = tensor(samples.train.inputs[:2])
        line = lineup(models, original, effort.seeds, example, primary.outputs, head, device)
        cuts, design = line.cuts, line.design
        if cuts[original][0].head is None and is_linear(models[original]):
            warn_if_uneven(primary, lambda x: cuts[original][0].features(x.to(device)).cpu())
        reader = Reader(example, shelf)
        run.progress("reading features", 0.0)
        tasks = {"harmful": samples} | {
            f"transfer {i}": Samples.of(t, shelf) for i, t in enumerate(transfer)
        }
        elsewhere = run.workers > 1 or run.cluster is not None
        public = None if primary.test is None else Samples.of(primary, shelf)
        given = effort.trials, effort.space, budget, tasks.get("transfer 0"), public
        jobs = Jobs(reader, *given, device, elsewhere, design.parts > 0)
        for what, task in tasks.items():
            for attack in chosen if what == "harmful" else [ATTACKS[name] for name in TRANSFER]:
                for each in line.runs():
                    jobs.add(what, task, attack, *each)
        for each in line.control_runs():  # training from scratch is fine-tuning these
            jobs.add("harmful", samples, ATTACKS["finetune_all"], *each)
        few: dict[str, list[str]] = {}  # keys of the curves over few rows, by model
        if samples.kind == "classification" and {a.name for a in chosen} >= set(PROBES):
            for name, of in {**cuts, CONTROL: line.fresh[0]}.items():
                found = [sample_job(reader, name, each, samples, budget.probes) for each in of]
                few[name] = [key for key, _ in found]
                jobs.todo |= dict(found)
        others = {f"transfer {i}": task for i, task in enumerate(transfer)}
        data = data_figures(primary=primary, attacker=harmful, **others)
        name = f"{primary.name} / {harmful.name}: {', '.join(cuts)}"
        if final:  # before the rows are opened
            key, opened = key_of(sorted(jobs.todo)), hash_rows(tensor(samples.test.inputs))
            count = enter(key, data["attacker"]["test"], opened, {"name": name, "data": data})
        harmless = {task.name: tasks[what] for what, task in others.items()}
        threshold = in_time(threshold, run.folder, jobs.todo)
        described = describe(
            cuts,
            design.origins,
            primary,
            public,
            samples,
            harmless,
            reader,
            shelf,
            original,
            tolerance,
        )
        results = sweep(jobs.todo, run, lasting=_is_done)
        trainings = {name: len({reader.digest(one) for one in of}) for name, of in cuts.items()}

    def judged(what: str, names: Sequence[str]) -> Any:
        found = {attack: jobs.results(results, what, attack) for attack in names}
        task = tasks[what]
        rows = len(task.test.labels)
        return summarise(found, design, rows, original, CONTROL, task.chance)

    table, scores = judged("harmful", [attack.name for attack in chosen])
    known = [attack.name for attack in chosen if attack.anticipated]
    cases = {n: worst_case(table, scores, n, original, CONTROL, known) for n in described}
    for name_of, case in cases.items():  # a broken model keeps no share: it is not immune
        case["broken"] = described[name_of]["broken"]
        for part in (case, case["unseen"]) if case["broken"] else ():
            part |= {"residual_advantage": None, "share_attack": None, "interval": None}
            part["overall"] = None
    own = {SCRATCH: {SCRATCH: jobs.results(results, "harmful", "finetune_all")[CONTROL]}}
    alone_design = replace(design, origins={SCRATCH: design.origins[CONTROL]}, fresh=[SCRATCH])
    rows = len(samples.test.labels)
    alone, _ = summarise(own, alone_design, rows, SCRATCH, CONTROL, samples.chance)
    attackers = line.attackers(samples)
    solved = [name for name, of in models.items() if is_linear(of)]
    against = [original, *([] if plain is None else [plain])]
    hits = {name: primary_hits(row) for name, row in described.items()}
    kept = non_inferiority(
        {n: h for n, h in hits.items() if h is not None}, design, against, tolerance
    )
    for model, changes in kept.items():
        described[model]["primary_change"] = changes
    figures = {
        "worst_case": cases,
        "models": described,
        "attacks": table,
        "controls": {"names": [original, CONTROL, SCRATCH], SCRATCH: alone[SCRATCH][SCRATCH]},
        "chance": samples.chance,
        "scored": scored,
        **({"final": {"audits": count}} if final else {}),
        "factors": factors(design, original, trainings, attackers, solved),
        "classes": primary.class_names,
        "transfer": {task.name: judged(what, TRANSFER)[0] for what, task in others.items()},
        "predictors": predictors(table, described, list(cuts)),
        "disjoint": disjoint,
        "samples": {n: over_trainings([results[key] for key in of]) for n, of in few.items()},
        "seconds": {n: sum(r.get("seconds", 0.0) for r in table[n].values()) for n in table},
    }
    settings = {
        "attacks": [attack.name for attack in chosen],
        "not_run": {a.name: a.summary for a in ATTACKS.values() if a not in chosen},
        "anticipated": known,
        "families": {a.name: family for family, of in GROUPS.items() for a in of if a in chosen},
        "budget": budget.tuning,
        "probe_budget": budget.probes,
        "retraining_budget": budget.retraining,
        "tuning_total": TOTAL * budget.tuning,
        "seeds": effort.seeds,
        "search": "grid" if effort.trials is None else f"optuna, {effort.trials} trials",
        "space": dict(effort.space),
        "original": original,
        "plain": plain,
        "tolerance": tolerance,
        "threshold": threshold,
    }
    seconds = time.perf_counter() - start
    return Audit(Record("audit", name, figures, settings, data, seed=0, seconds=seconds))


def _is_done(found: Any) -> bool:
    kinds = ({"curve", "trials"}, {"points", "area"})
    return isinstance(found, dict) and any(kind <= found.keys() for kind in kinds)
