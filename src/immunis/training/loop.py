"""The one training loop, on Lightning Fabric: it pre-trains and immunizes, on one device or many.

It logs and reports progress; it does not print.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from immunis.core.distributed import (
    differing_across_processes,
    note_checkpoint,
    rank,
    report_lost_process,
)
from immunis.core.errors import InputError, NumericalError, SettingsError
from immunis.core.extras import need
from immunis.core.files import make_folder
from immunis.core.jobs import Progress, silent
from immunis.core.state import alone
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.models.weights import versioned
from immunis.training import checkpoint
from immunis.training.balance import balanced_weights
from immunis.training.objective import Objective
from immunis.training.selection import average_buffers, doubts, evaluate, is_best, is_patient
from immunis.training.settings import Hardware, Training
from immunis.training.setup import TrainingRun, plain_name, prepare
from immunis.training.simulated import attack
from immunis.training.step import backward, clear, draw, forward, loss_of, values_of
from immunis.training.threads import on_few_threads


@dataclass(frozen=True)
class Fit:
    """A finished run."""

    model: nn.Module  # of the same class and keys as before, in evaluation mode
    history: list[dict[str, Any]]  # figures of every evaluation, the first before any step
    best_step: int  # whose weights these are
    weights: dict[str, float]  # factor of each term, as given or balanced
    steps: int  # taken by the optimizer
    seconds: float  # of the last part, if the run was resumed
    notes: list[str]  # for a reader of the record
    kept: bool  # the primary score was kept within the tolerance


@on_few_threads
@report_lost_process()
@alone()  # every step seeds torch's generator
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
    reference: Tensor | None = None,
    progress: Progress = silent,
) -> Fit:
    """Train a copy of a model on an objective; return its best evaluation.

    Without a harmful task, this is pre-training. ``seed`` decides data order, augmentation, dropout
    and the harmful head. ``folder`` takes a checkpoint at every evaluation, and at least every
    five minutes, and TensorBoard's curves; no lock is taken, so it serves one run at a time.
    ``resume`` continues from its checkpoint, if there is one; a checkpoint of another ``identity``
    (the objective's settings) is refused. ``wandb`` names a Weights & Biases project to log to.
    ``reference`` are the ``row_hits`` on held-out primary rows whose score is to be kept; if left
    out, it is the score of the model as given.

    Raises:
        InputError: if the model, the data or the checkpoint cannot be used.
        NumericalError: if a loss is not finite; the last good checkpoint is kept.
        LostProcessError: if another process of the run has died.
    """
    began = time.perf_counter()
    if resume and folder is None:
        raise SettingsError("resume continues a run from a folder; give folder= too.")
    run = prepare(cut, objective, primary, harmful, training, hardware or Hardware(), seed)
    fabric, optimizer, run.reference = run.fabric, run.optimizer, reference
    mark = checkpoint.fingerprint(run, cut.model, identity)
    _check_processes(run, mark)
    note_checkpoint(None)
    kept = None if folder is None else make_folder(folder) / checkpoint.NAME
    earlier = kept is not None and kept.exists()
    if resume and kept is not None and earlier:
        checkpoint.restore(run, kept, mark)
    else:
        if earlier and rank() == 0:
            warnings.warn(
                f"{kept} belongs to an earlier run and will be replaced; resume to continue it.",
                stacklevel=2,
            )
        run.history.append(evaluate(run))
        run.begin()
    loggers = _loggers(kept and kept.parent, wandb, asdict(training)) if rank() == 0 else []

    def log(values: Mapping[str, float]) -> None:
        for logger in loggers:
            logger.log_metrics(values, step)

    stride = math.ceil(run.steps / training.evaluate)
    written, step = time.monotonic(), run.step
    stop = run.steps if is_patient(run) else run.step
    try:
        for step, batch, other in run.batches(run.step, stop):
            share = training.factor(step, run.steps)
            for group, peak in zip(optimizer.param_groups, training.peaks, strict=True):
                group["lr"] = peak * share
            rows = draw(run, step, batch, other)
            run.weights = run.weights or balanced_weights(run, rows)

            clear(run)
            attacked = attack(run, rows)
            outputs = forward(run, rows)
            loss, terms = loss_of(outputs.view, objective.terms, run.weights)
            backward(run, loss, outputs)
            norm = fabric.clip_gradients(
                run.student, optimizer, max_norm=training.clip or math.inf, error_if_nonfinite=False
            )
            values = values_of(attacked | terms)
            _check_finite(run, values, float(norm))
            optimizer.step()

            run.step = step + 1
            rate = optimizer.param_groups[0]["lr"]
            log(values | {"gradient": float(norm), "rate": rate})
            progress("training", run.step / run.steps)
            due = run.step % stride == 0 or run.step == run.steps
            if due:
                run.history.append(figures := evaluate(run))
                log({f"held out/{name}": value for name, value in figures.items()})
                if is_best(run):
                    run.best = {"step": run.step, "model": checkpoint.model_state(run.model)}
            if kept is not None and (due or checkpoint.is_due(run, written)):
                average_buffers(run)
                checkpoint.save(run, kept, mark)
                written = time.monotonic()
            if due and not is_patient(run):
                break
    except NumericalError as error:
        raise NumericalError(_diverged(step + 1, str(error), kept)) from None
    finally:
        for logger in loggers:
            logger.finalize("success")
            if hasattr(logger.experiment, "finish"):  # a run of Weights & Biases
                logger.experiment.finish()
        run.student.module.close()
    return _finished(run, cut, time.perf_counter() - began)


def _loggers(folder: Path | None, wandb: str | None, settings: Mapping[str, Any]) -> list[Any]:
    """Return Lightning's loggers: TensorBoard into a folder, and a Weights & Biases project."""
    loggers: list[Any] = []
    if folder is not None:
        from lightning.fabric.loggers import TensorBoardLogger

        try:
            logger = TensorBoardLogger(folder, name="", version="")
            logger.experiment.flush()  # opens the file
            loggers.append(logger)
        except UnicodeEncodeError:
            told = "TensorBoard cannot write to a folder whose name is not UTF-8"
            warnings.warn(f"{told}: no curves in {folder}.", stacklevel=3)
    if wandb is not None:
        need("wandb")
        from lightning.pytorch.loggers import WandbLogger

        loggers.append(WandbLogger(project=wandb, config=dict(settings)))
    return loggers


def _check_processes(run: TrainingRun, mark: dict[str, str]) -> None:
    """Refuse processes that were given different models, settings or data."""
    classes = {f"classes of {s.task.name}": s.task.outputs for s in run.streams}
    if differ := differing_across_processes({**mark, **classes}):
        raise InputError(
            f"the processes of this run differ in: {', '.join(differ)}. Give all of them the same "
            "model, settings and data; each takes its own share of the rows."
        )


def _check_finite(run: TrainingRun, values: dict[str, float], norm: float) -> None:
    """Refuse terms, and a gradient, that are not finite."""
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    if not math.isfinite(norm) and run.scaler is None:  # a scaler skips a step that overflows
        bad = bad or ["the gradient"]
    if bad:
        raise NumericalError(f"{' and '.join(bad)} {'is' if len(bad) == 1 else 'are'} not finite")


def _diverged(step: int, what: str, kept: Path | None) -> str:
    hint = ""
    if kept is not None and kept.exists():
        hint = (
            f" The last good checkpoint is {kept}; immunis.training.checkpoint.read(path)['model'] "
            "is its state_dict. Resuming needs the same settings."
        )
    return (
        f"training diverged at step {step}: {what.rstrip('.')}. Lower the rate, the weights or "
        f"clip, and start afresh.{hint}"
    )


def _finished(run: TrainingRun, cut: Cut, seconds: float) -> Fit:
    """Return the best evaluation's model, with notes on doubts about it."""
    history, best = run.history, run.best
    kept = best["model"] is not None
    if not kept and run.reference is None:  # else a search goes on without these weights
        run.note("no evaluation kept the primary score within the tolerance: the last one counts.")
    if not kept:
        best = {"step": history[-1]["step"], "model": checkpoint.model_state(run.model)}
    if run.judge == "probe" and run.streams[1].task.kind == "classification":
        chosen = next(row for row in history if row["step"] == best["step"])
        for doubt in doubts(chosen, history[0]):
            run.note(doubt)
    model = copy.deepcopy(cut.model)
    state = {plain_name(name): tensor for name, tensor in best["model"].items()}
    model.load_state_dict(versioned(model, state))
    return Fit(
        model.eval(),
        history,
        best["step"],
        run.weights,
        history[-1]["step"],
        seconds,
        run.notes,
        kept,
    )
