"""What a run has seen so far: its evaluations, the best of them, and its checkpoint on disk."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from immunis.core.distributed import rank, summed
from immunis.core.errors import NumericalError
from immunis.core.lost_process import note_checkpoint
from immunis.training import checkpoint as checkpoints
from immunis.training.run import Run
from immunis.training.selection import merit

EVERY = 300.0  # seconds after which a checkpoint is written between evaluations too


class Journal:
    """The evaluations of a run, and what is kept of it.

    Args:
        run: the run.
        folder: where its checkpoint goes; None for nowhere.
        fingerprint: what a checkpoint must agree with to be of this run.
        judge: which figure decides the best evaluation.

    Attributes:
        step: number of steps done.
        history: figures of every evaluation, the first of them before any step.
        best: step and model of the best one.
    """

    def __init__(
        self, run: Run, folder: Path | None, fingerprint: Mapping[str, str], judge: str
    ) -> None:
        self.run, self.folder, self.fingerprint, self.judge = run, folder, fingerprint, judge
        self.step, self.history = 0, list[dict[str, Any]]()
        self.best: dict[str, Any] = {"step": 0, "model": None}
        self._written = time.monotonic()
        note_checkpoint(None)

    @property
    def _precision(self) -> str:
        return str(self.run.fabric.strategy.precision.precision)

    @property
    def kept(self) -> Path | None:
        """The checkpoint on disk, if there is one."""
        path = None if self.folder is None else self.folder / checkpoints.NAME
        return path if path is not None and path.exists() else None

    def begin(self, resume: bool) -> None:
        """Take up the checkpoint if asked to and there is one, or evaluate the start."""
        run = self.run
        if not resume or self.folder is None or self.kept is None:
            if self.kept is not None and rank() == 0:
                warnings.warn(
                    f"{self.kept} is of an earlier run, which is not gone on with: it will be "
                    "replaced. To go on with it, resume.",
                    stacklevel=3,
                )
            self.history.append(run.measure(0))
            self._written = time.monotonic()
            return
        state = checkpoints.load(self.folder, run.inner, run.optimizer.optimizer, self.fingerprint)
        self.step, self.history, self.best = state["step"], state["history"], state["best"]
        run.engine.weights, run.engine.notes = state["weights"], state["notes"]
        for task, names in zip(run.tasks, state["skipped"], strict=True):
            task.train.corrupt |= set(names)
        if state["precision"] != self._precision:
            run.engine.notes.append(
                f"the first {self.step} steps were taken in {state['precision']}; the run was "
                f"resumed in {self._precision}."
            )
        if state["scaler"]:  # empty where it was written in a precision that has none
            run.fabric.strategy.precision.load_state_dict(state["scaler"])
        if run.head is not None:
            run.head.load_state_dict(state["head"])

    def evaluate(self, step: int) -> dict[str, Any]:
        """Measure the model, note whether it is the best so far, and write a checkpoint."""
        try:
            figures = self.run.measure(step)
        except NumericalError as error:
            raise self.diverged(step, str(error)) from None
        self.history.append(figures)
        if self._merit(figures) > self._merit(self._best_row()):
            self.best = {"step": step, "model": checkpoints.model_state(self.run.inner)}
        self.keep(step)
        return figures

    def _merit(self, row: dict[str, Any] | None) -> tuple[float, float]:
        """How good an evaluation is beside all there have been; of none, −∞."""
        if row is None:
            return -math.inf, 0.0
        return merit(row, self.history, self.judge, self.run.training.tolerance)

    def _best_row(self) -> dict[str, Any] | None:
        if self.best["model"] is None:
            return None
        return next(row for row in self.history if row["step"] == self.best["step"])

    def diverged(self, step: int, what: str) -> NumericalError:
        """The error of a run that cannot go on; steps are counted from 1."""
        kept = (
            f" The last good checkpoint is {self.kept}: immunis.checkpoints.read(path)['model'] is "
            "its state_dict, and resuming goes on from it with the same settings only."
        )
        return NumericalError(
            f"training diverged at step {step}: {what.rstrip('.')}. Lower the rate, the weights or "
            f"clip, and start afresh.{kept if self.kept else ''}"
        )

    def keep(self, step: int) -> None:
        """Write a checkpoint; every process calls this."""
        run = self.run
        if self.folder is not None:
            checkpoints.save(self.folder, run.inner, run.optimizer.optimizer, {
                "run": self.fingerprint, "step": step, "history": self.history, "best": self.best,
                "weights": run.engine.weights, "notes": run.engine.notes,
                "skipped": [sorted(task.train.corrupt) for task in run.tasks],
                "precision": self._precision,
                "scaler": run.fabric.strategy.precision.state_dict(),
                "head": {} if run.head is None else run.head.state_dict(),
            })  # fmt: skip
        self._written = time.monotonic()

    def keep_by_clock(self, step: int) -> None:
        """Write a checkpoint where the last one is old by any process's clock."""
        if self.folder is None:
            return
        old = float(time.monotonic() - self._written > EVERY)
        if float(summed(torch.tensor(old, device=self.run.fabric.device))) > 0:
            self.run.agree()  # running means are linear: it matters not when
            self.keep(step)

    @property
    def patient(self) -> bool:
        """Whether a better evaluation may still come."""
        patience = self.run.training.patience
        since = sum(row["step"] > self.best["step"] for row in self.history)
        return not patience or self.best["model"] is None or since < patience
