"""A training run on disk: everything it needs to continue as if it had never stopped.

Data order and randomness depend on the step number alone, so no state of theirs is kept. A line
with the SHA-256 of the rest comes first. Objects are never unpickled.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from immunis.core.distributed import note_checkpoint, rank, summed, world
from immunis.core.errors import InputError
from immunis.core.files import check_stored, make_folder, open_regular, write_bytes
from immunis.core.hashing import state_digest
from immunis.core.settings import differing
from immunis.models.weights import versioned
from immunis.training.setup import TrainingRun

FORMAT = 7
NAME = "checkpoint.pt"
HEAD = b"immunis checkpoint, sha256 "
EVERY = 300.0  # seconds between checkpoints, if evaluations are further apart
_FULL = StateDictOptions(full_state_dict=True)


def model_state(model: nn.Module) -> dict[str, Any]:
    """Return a model's whole state on the CPU, also if it is wrapped or sharded."""
    return {
        name: value.detach().cpu().clone() if isinstance(value, Tensor) else value
        for name, value in get_model_state_dict(model, options=_FULL).items()
    }


def fingerprint(run: TrainingRun, start: nn.Module, identity: str) -> dict[str, str]:
    """Return what must agree to resume a run: objective, settings, data, starting weights."""
    settings = {name: str(value) for name, value in asdict(run.training).items()}
    settings.pop("workers")  # does not change the result
    for name in ("batch", "harmful_batch"):  # rounded down to a multiple of the processes
        settings[name] = str(getattr(run.training, name) // world() * world())
    data = [stream.task.train.identity() for stream in run.streams]
    return {
        "seed": str(run.seed),
        "method": identity,
        **settings,
        **dict(zip(("primary data", "harmful data"), [*data, "none"], strict=False)),
        "starting weights": state_digest(start),
    }


def save(run: TrainingRun, path: Path, mark: Mapping[str, str]) -> None:
    """Write a checkpoint; every process calls this, the first one writes."""
    content = {
        "format": FORMAT,
        "run": mark,
        "model": model_state(run.model),
        "optimizer": get_optimizer_state_dict(run.model, run.optimizer.optimizer, options=_FULL),
        "step": run.step,
        "history": run.history,
        "best": run.best,
        "weights": run.weights,
        "notes": run.notes,
        "skipped": [sorted(stream.task.train.corrupt) for stream in run.streams],
        "precision": _precision(run),
        "scaler": run.fabric.strategy.precision.state_dict(),
        "head": {} if run.head is None else run.head.state_dict(),
    }
    if rank() == 0:
        make_folder(path.parent)
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_bytes(path, head_of(buffer.getbuffer()), buffer.getbuffer())
    note_checkpoint(path)


def is_due(run: TrainingRun, written: float) -> bool:
    """Return True if the last checkpoint is too old by the clock of any process."""
    old = float(time.monotonic() - written > EVERY)
    return float(summed(torch.tensor(old, device=run.fabric.device))) > 0


def _precision(run: TrainingRun) -> str:
    return str(run.fabric.strategy.precision.precision)


def head_of(content: bytes | memoryview) -> bytes:
    """Return the line that precedes a checkpoint's content."""
    return HEAD + hashlib.sha256(content).hexdigest().encode() + b"\n"


def read(path: Path) -> dict[str, Any]:
    """Return a checkpoint's content; refuse a damaged one, and any but plain values."""
    try:
        with open_regular(path) as file:
            head, body = file.readline(len(HEAD) + 65), file.read()
    except OSError as error:
        raise InputError(f"cannot read checkpoint {path}: {error.strerror}.") from error
    foreign = f"{path} is not a checkpoint of this version. Delete it to start afresh."
    if not head.startswith(HEAD):
        raise InputError(foreign)
    if head != head_of(body):
        raise InputError(f"checkpoint {path} is damaged (checksum). Delete it to start afresh.")
    try:
        archive = io.BytesIO(body)
        check_stored(archive)
        content: Any = torch.load(archive, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
        raise InputError(f"checkpoint {path} cannot be read: {str(error)[:200]}.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(foreign)
    return content


def restore(run: TrainingRun, path: Path, mark: Mapping[str, str]) -> None:
    """Continue a run from its checkpoint; refuse a damaged one, and one of another run."""
    state = read(path)
    shapes = [
        {name: getattr(value, "shape", None) for name, value in tensors.items()}
        for tensors in (model_state(run.model), state["model"])
    ]
    if wrong := differing(*shapes):
        raise InputError(
            f"checkpoint {path} belongs to another model: {len(wrong)} tensors differ in name or "
            f"shape, among them {wrong[0]}."
        )
    if apart := differing(state["run"], mark):
        raise InputError(
            f"checkpoint {path} belongs to another run, which differs in: {', '.join(apart)}. Use "
            "the same settings, or another folder."
        )
    set_model_state_dict(run.model, versioned(run.model, state["model"]), options=_FULL)
    set_optimizer_state_dict(run.model, run.optimizer.optimizer, state["optimizer"], options=_FULL)
    run.step, run.history, run.best = state["step"], state["history"], state["best"]
    run.weights = state["weights"]
    run.notes += [note for note in state["notes"] if note not in run.notes]
    for stream, names in zip(run.streams, state["skipped"], strict=True):
        stream.task.train.corrupt |= set(names)
    if (before := state["precision"]) != (now := _precision(run)):
        run.notes.append(f"the first {run.step} steps were taken in {before}, the others in {now}.")
    if state["scaler"]:  # empty if that precision has none
        run.fabric.strategy.precision.load_state_dict(state["scaler"])
    if run.head is not None:
        run.head.load_state_dict(state["head"])
    note_checkpoint(path)
