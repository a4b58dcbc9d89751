"""The one training loop, on Lightning Fabric: a model, an objective and two tasks in, a model out.

Used to pre-train, to immunize, on one device or many. It logs and reports; it does not print.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from immunis.core.distributed import differing_across_processes, rank, world
from immunis.core.errors import InputError, NumericalError, SettingsError
from immunis.core.files import make_folder
from immunis.core.hashing import state_digest
from immunis.core.lost_process import report_lost_process
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.models.weights import versioned
from immunis.training import checkpoint as checkpoints
from immunis.training.hardware import Hardware
from immunis.training.journal import Journal
from immunis.training.objective import Objective
from immunis.training.run import Run
from immunis.training.selection import doubts
from immunis.training.settings import Training
from immunis.training.setup import plain
from immunis.training.tracking import Tracker

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Fit:
    """A finished run.

    Attributes:
        model: the trained model: same class and keys as before, in evaluation mode.
        history: figures of every evaluation, the first of them before any step.
        best_step: the step whose weights these are.
        weights: factor of each term, as given or balanced.
        steps: optimizer steps taken.
        seconds: wall time of the run (of the last part, if it was resumed).
        notes: what a reader of the record should know.
    """

    model: nn.Module
    history: list[dict[str, Any]]
    best_step: int
    weights: dict[str, float]
    steps: int
    seconds: float
    notes: list[str] = field(default_factory=list)


@report_lost_process()
def fit(
    cut: Cut,
    objective: Objective,
    primary: Task,
    harmful: Task | None,
    training: Training,
    hardware: Hardware | None = None,
    *,
    seed: int = 0,
    folder: str | Path | None = None,
    resume: bool = False,
    wandb: str | None = None,
    identity: str = "",
    progress: Progress = lambda what, share: None,
) -> Fit:
    """Train a copy of a model on an objective and return the best of its evaluations.

    Args:
        cut: the model; it is not changed.
        objective: what to minimise.
        primary: the task that must stay easy.
        harmful: the task that should become hard; None to train on the primary task alone,
            in training mode.
        training: how.
        hardware: where; one CPU process if left out.
        seed: decides the order of data, augmentation, dropout and the harmful head.
        folder: where checkpoints and TensorBoard's curves go; none are written without. A
            checkpoint is written at every evaluation, and after five minutes without one. No
            lock is taken: one run at a time in a folder (the command line holds its own).
        resume: go on from the checkpoint in ``folder``, if there is one.
        wandb: Weights & Biases project to log to.
        identity: what the objective is, so that a checkpoint of another one is refused.
        progress: called with what was done and the share of the whole.

    Raises:
        InputError: for a model or data that cannot be used, or a foreign checkpoint.
        NumericalError: if a loss is not finite; the last good checkpoint is kept.
        LostProcessError: if another process of the run has died.
    """
    began = time.perf_counter()
    if resume and folder is None:
        raise SettingsError("resume goes on from a folder; give folder= too.")
    run = Run(cut, objective, primary, harmful, training, hardware or Hardware(), seed)
    judge = objective.judge if harmful is not None else "primary"
    path = None if folder is None else make_folder(folder)
    fingerprint = _fingerprint(cut, primary, harmful, training, seed, identity)
    counts = {f"classes of {task.name}": task.outputs for task in run.tasks}
    if differ := differing_across_processes({**fingerprint, **counts}):
        raise InputError(
            f"the processes of this run differ in: {', '.join(differ)}. Give all of them the same "
            "model, settings and data; each takes its own share of the rows."
        )
    journal = Journal(run, path, fingerprint, judge)
    journal.begin(resume)
    writes = rank() == 0
    tracker = Tracker(path if writes else None, wandb if writes else None, asdict(training))

    stride = math.ceil(run.steps / training.evaluate)
    end = run.steps if journal.patient else journal.step
    try:
        for step, batch, other in run.batches(journal.step, end):
            try:
                values = run.gradients(step, batch, other)
            except NumericalError as error:
                raise journal.diverged(step + 1, str(error)) from None
            if bad := run.unsound(values):
                terms = [name for name in bad if name != "gradient"] or ["the gradient"]
                raise journal.diverged(step + 1, f"{' and '.join(terms)} is not finite")
            run.optimizer.step()
            tracker.log(step, values)
            done = step + 1
            progress("training", done / run.steps)
            if done % stride and done < run.steps:
                journal.keep_by_clock(done)
                continue
            figures = journal.evaluate(done)
            tracker.log(step, {f"held out/{name}": value for name, value in figures.items()})
            if not journal.patient:
                break
    finally:
        tracker.close()
        run.tapped.close()

    history, best, notes = journal.history, journal.best, run.notes
    if best["model"] is None:
        notes.append(
            "no evaluation kept the held-out primary score within the tolerance; these are the "
            "last weights."
        )
        warnings.warn(notes[-1], stacklevel=2)
        best = {"step": history[-1]["step"], "model": checkpoints.model_state(run.inner)}
    if judge == "probe" and harmful is not None and harmful.kind == "classification":
        chosen = next(row for row in history if row["step"] == best["step"])
        for note in doubts(chosen, history[0]):
            notes.append(note)
            warnings.warn(note, stacklevel=2)
    result = copy.deepcopy(cut.model)
    state = {plain(name): tensor for name, tensor in best["model"].items()}
    result.load_state_dict(versioned(result, state))
    return Fit(
        result.eval(), history, best["step"], run.engine.weights, history[-1]["step"],
        time.perf_counter() - began, [*notes, *run.engine.notes],
    )  # fmt: skip


def _fingerprint(
    cut: Cut, primary: Task, harmful: Task | None, training: Training, seed: int, identity: str
) -> dict[str, str]:
    """What a checkpoint must agree with to be resumed: objective, settings, data, weights."""
    settings = {name: str(value) for name, value in asdict(training).items()}
    settings.pop("workers")  # who decodes makes no difference
    for name in ("batch", "harmful_batch"):  # rounded down to a multiple of the processes
        settings[name] = str(getattr(training, name) // world() * world())
    data = {"primary data": primary, "harmful data": harmful}
    return {
        "seed": str(seed),
        "method": identity,
        **settings,
        **{role: "none" if t is None else t.train.identity() for role, t in data.items()},
        "starting weights": state_digest(cut.model),
    }
