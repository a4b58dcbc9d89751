"""The one training loop, on Lightning Fabric: a model, an objective and two tasks in, a model out.

Used to pre-train, to immunize, on one device or many. It logs and reports; it does not print.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from immunis import checkpoints
from immunis.engine import Engine
from immunis.errors import InputError, NumericalError, RankWarning, SettingsError
from immunis.features import Cut, state_digest
from immunis.heldout import HeldOut, merit
from immunis.objectives.base import Objective
from immunis.outputs import fitting, logits_of
from immunis.plan import Hardware, Training
from immunis.prepare import check_head, encoder_of, optimizer_of, set_mode, trainable
from immunis.processes import note_checkpoint, rank, summed, together, world
from immunis.streams import Stream, augmented, held_out
from immunis.taps import Tapped
from immunis.tasks import Task
from immunis.tracking import Tracker

Progress = Callable[[str, float], None]
EVERY = 300.0  # seconds after which a checkpoint is written between evaluations too


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


@together()
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
    hardware = hardware or Hardware()
    if resume and folder is None:
        raise SettingsError("resume goes on from a folder; give folder= too.")
    check_head(cut, primary)
    judge = objective.judge if harmful is not None else "primary"
    fabric = hardware.fabric()
    start = cut.copy()
    model, names = start.model, trainable(start, training)
    tapped = Tapped(start, objective.layers)
    set_mode(model, training, pretraining=harmful is None)
    if fabric.device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if hardware.compile:
        model.compile()
    notes = _check(start, harmful, training)

    where = fabric.device
    splits = {
        role: held_out(_count(task), training.held_out)
        for role, task in (("primary", primary), ("harmful", harmful))
        if task is not None
    }
    options: dict[str, Any] = {"seed": seed, "workers": training.workers, "device": where}
    first = Stream(primary, training.batch, splits["primary"][0], **options)
    second = None
    if harmful is not None:
        second = Stream(harmful, training.harmful_batch, splits["harmful"][0], **options)
    steps = training.length(first.epoch, second.epoch if second else 0)
    held = HeldOut(first, second, (splits["primary"][1], splits.get("harmful", (None, None))[1]))

    with warnings.catch_warnings():  # newer torch has another word for broadcast_buffers
        warnings.filterwarnings("ignore", message=".*broadcast_buffers")
        module = fabric.setup(tapped)
    inner = module._forward_module
    named = {_plain(n): p for n, p in module.named_parameters() if p.requires_grad}
    body = [p for n, p in named.items() if n in names]
    groups: list[dict[str, Any]] = [
        {"params": body, "lr": training.rate, "weight_decay": training.weight_decay},
        {
            "params": [p for n, p in named.items() if n not in names],
            "lr": training.rate if training.head_rate is None else training.head_rate,
            "weight_decay": training.head_weight_decay,
        },
    ]
    peaks = [float(group["lr"]) for group in groups]
    optimizer = fabric.setup_optimizers(optimizer_of(training, groups))

    teacher = None
    if objective.teacher:
        frozen = copy.deepcopy(cut.model).to(where).eval().requires_grad_(False)

        def teacher(inputs: Tensor) -> Tensor:
            with torch.no_grad(), fabric.autocast():
                return logits_of(frozen(fitting(frozen, inputs))).float()

    harmful_head = None
    if objective.head and harmful is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            harmful_head = nn.Linear(start.width, harmful.outputs).to(where).requires_grad_(False)
    engine = Engine(
        fabric, module, objective, body, encoder_of(harmful),
        teacher=teacher, head=harmful_head, smoothing=training.label_smoothing,
        classify=harmful is not None and harmful.kind == "classification",
        accumulate=training.accumulate, joint=training.batchnorm == "freeze",
        sharded=hardware.strategy == "fsdp",
    )  # fmt: skip

    def measure(step: int) -> dict[str, Any]:
        _agree_on_buffers(module)
        mode = [m for m in module.modules() if m.training]
        module.eval()

        def read(inputs: Tensor) -> tuple[Tensor, Tensor]:
            answers, features = inner(inputs)  # in full precision, also in a mixed run
            return answers, features[""]

        figures = {"step": step, **held.measure(read)}
        for m in mode:
            m.training = True
        return figures

    path = None if folder is None else Path(folder)
    run = _fingerprint(cut, primary, harmful, training, seed, identity)
    note_checkpoint(None)
    history: list[dict[str, Any]] = []
    best: dict[str, Any] = {"step": 0, "merit": -math.inf, "model": None}
    done = 0
    if resume and path is not None and (path / checkpoints.NAME).exists():
        state = checkpoints.load(path, inner, optimizer.optimizer, run)
        done, history, best = state["step"], state["history"], state["best"]
        engine.weights = state["weights"]
        if harmful_head is not None:
            harmful_head.load_state_dict(state["head"])
    else:
        history.append(measure(0))
    tracker = Tracker(
        path if rank() == 0 else None, wandb if rank() == 0 else None, asdict(training)
    )

    written = time.monotonic()

    def keep(step: int) -> None:
        nonlocal written
        if path is not None:
            checkpoints.save(path, inner, optimizer.optimizer, {
                "run": run, "step": step, "history": history, "best": best,
                "weights": engine.weights,
                "head": {} if harmful_head is None else harmful_head.state_dict(),
            })  # fmt: skip
        written = time.monotonic()

    def due() -> bool:  # by any process's clock, so that all of them write together
        late = torch.tensor(float(time.monotonic() - written > EVERY), device=where)
        return float(summed(late)) > 0

    def patient() -> bool:
        since = sum(row["step"] > best["step"] for row in history)
        return not training.patience or best["model"] is None or since < training.patience

    stride = math.ceil(steps / training.evaluate)
    stop = steps if patient() else done
    pairs = zip(
        first.batches(done, stop),
        second.batches(done, stop) if second else itertools.repeat(None),
        strict=False,
    )
    for step, (batch, other) in enumerate(pairs, done):
        torch.manual_seed(1_000_003 * seed + step)
        if training.augment:
            generator = torch.Generator(where).manual_seed(1_000_003 * seed + step)
            batch = augmented(batch[0], generator), batch[1]
            other = None if other is None else (augmented(other[0], generator), other[1])
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * training.factor(step, steps)
        values = engine.gradients(batch, other)
        norm = fabric.clip_gradients(
            module, optimizer, max_norm=training.clip, error_if_nonfinite=False
        )
        scaled = hardware.precision == "16-mixed"  # its scaler skips a step that overflows
        finite = scaled or math.isfinite(float(norm))
        if not (finite and all(map(math.isfinite, values.values()))):
            raise _diverged(step, values, path)
        optimizer.step()
        tracker.log(
            step, {**values, "gradient": float(norm), "rate": optimizer.param_groups[0]["lr"]}
        )
        progress("training", (step + 1) / steps)
        if (step + 1) % stride and step + 1 < steps:
            if path is not None and due():
                _agree_on_buffers(module)  # running means are linear: it matters not when
                keep(step + 1)
            continue
        figures = measure(step + 1)
        history.append(figures)
        score = merit(figures, history[0], judge, training.tolerance)
        if score > best["merit"]:
            best = {"step": step + 1, "merit": score, "model": checkpoints.model_state(inner)}
        keep(step + 1)
        tracker.log(step, {f"held out/{name}": value for name, value in figures.items()})
        if not patient():
            break

    if best["model"] is None:
        notes.append(
            "no evaluation kept the held-out primary score within the tolerance; these are the "
            "last weights."
        )
        warnings.warn(notes[-1], stacklevel=2)
        best = {"step": history[-1]["step"], "model": checkpoints.model_state(inner)}
    tracker.close()
    tapped.close()
    result = copy.deepcopy(cut.model)
    result.load_state_dict({_plain(name): tensor for name, tensor in best["model"].items()})
    return Fit(
        result.eval(), history, best["step"], engine.weights, history[-1]["step"],
        time.perf_counter() - began, [*notes, *engine.notes],
    )  # fmt: skip


def _plain(name: str) -> str:
    """A parameter's name in the plain model."""
    return name.replace("_forward_module.", "").removeprefix("module.").removeprefix("model.")


def _count(task: Task) -> int:
    count = len(task.train.dataset()[0])  # type: ignore[arg-type]
    if count < 20:
        raise InputError(f"{task.name}: {count} training samples; a tenth of them is held out.")
    return count


def _agree_on_buffers(module: nn.Module) -> None:
    """Average running statistics over processes, so that all of them measure one model."""
    if world() > 1:
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.copy_(summed(buffer) / world())


def _check(cut: Cut, harmful: Task | None, training: Training) -> list[str]:
    """Warn of a Gram with too few samples; return what the record should say."""
    if harmful is None:
        return []
    size = min(training.harmful_batch, _count(harmful))
    if size > cut.width:
        return []
    note = (
        f"{size} harmful samples a step in {cut.width} dimensions: the Gram is rank-deficient and "
        f"a probe explains any labels. Raise harmful_batch (and accumulate) above {cut.width}."
    )
    warnings.warn(note, RankWarning, stacklevel=3)
    return [note]


def _diverged(step: int, values: dict[str, float], folder: Path | None) -> NumericalError:
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    kept = folder is not None and (folder / checkpoints.NAME).exists()
    return NumericalError(
        f"training diverged at step {step}: {' and '.join(bad) or 'the gradient'} is not finite. "
        "Lower the rate, the weights or clip. "
        + (f"The last good checkpoint is {folder / checkpoints.NAME}." if folder and kept else "")
    )


def _fingerprint(
    cut: Cut, primary: Task, harmful: Task | None, training: Training, seed: int, identity: str
) -> str:
    """What a checkpoint must agree with to be resumed: objective, settings, data, weights."""
    total = hashlib.sha256(json.dumps([asdict(training), seed, identity], default=str).encode())
    for task in (primary, harmful):
        total.update(b"none" if task is None else task.train.identity().encode())
    total.update(state_digest(cut.model).encode())
    return total.hexdigest()
