"""A training run on disk: everything it needs to go on as if it had never stopped.

Order of data and randomness are functions of the step number (``immunis.data.loader``), so the
step is the loader's position and the generators' state. Written whole or not at all, behind a
line with the SHA-256 of the rest; read without unpickling objects.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping
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

from immunis.core.distributed import rank
from immunis.core.errors import InputError
from immunis.core.files import check_stored, make_folder, write_bytes
from immunis.core.lost_process import note_checkpoint
from immunis.core.settings import differing
from immunis.models.weights import versioned

FORMAT = 7
NAME = "checkpoint.pt"
HEAD = b"immunis checkpoint, sha256 "
_FULL = StateDictOptions(full_state_dict=True)


def model_state(model: nn.Module) -> dict[str, Any]:
    """A model's whole state on the CPU, whatever it is wrapped or sharded by."""
    state: dict[str, Any] = get_model_state_dict(model, options=_FULL)
    return {
        name: value.detach().cpu().clone() if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> Path:
    """Write a checkpoint; every process calls this, the first one writes."""
    content = {
        "format": FORMAT,
        "model": model_state(model),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=_FULL),
        **state,
    }
    path = folder / NAME
    if rank() == 0:
        make_folder(folder)
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_bytes(path, head_of(buffer.getbuffer()), buffer.getbuffer())
    note_checkpoint(path)
    return path


def head_of(content: bytes | memoryview) -> bytes:
    """The line that goes before a checkpoint's content."""
    return HEAD + hashlib.sha256(content).hexdigest().encode() + b"\n"


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint's content.

    Raises:
        InputError: where there is none, it is damaged, or holds anything but plain values.
    """
    try:
        with path.open("rb") as file:
            head, body = file.readline(len(HEAD) + 65), file.read()
    except FileNotFoundError:
        raise InputError(f"there is no checkpoint {path} to resume from.") from None
    except OSError as error:
        raise InputError(f"cannot read checkpoint {path}: {error.strerror}.") from error
    if not head.startswith(HEAD):
        raise InputError(f"{path} is not a checkpoint of this version; delete it to start afresh.")
    if head != head_of(body):
        raise InputError(
            f"checkpoint {path} is damaged: it does not match its checksum. Delete it to start "
            "afresh."
        )
    try:
        archive = io.BytesIO(body)
        check_stored(archive)
        content: Any = torch.load(archive, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
        raise InputError(f"checkpoint {path} cannot be read: {str(error)[:200]}.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path} is not a checkpoint of this version; delete it to start afresh.")
    return content


def load(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, run: Mapping[str, str]
) -> dict[str, Any]:
    """Read a checkpoint into a model and its optimizer, and return the rest of it.

    Raises:
        InputError: where there is none, it is damaged, or belongs to another run.
    """
    path = folder / NAME
    content = read(path)
    mine, theirs = model_state(model), content["model"]
    shapes = [{k: getattr(v, "shape", None) for k, v in state.items()} for state in (mine, theirs)]
    if wrong := differing(*shapes):
        raise InputError(
            f"checkpoint {path} is of another model: {len(wrong)} tensors differ in name or shape, "
            f"among them {wrong[0]}."
        )
    if apart := differing(content["run"], run):
        raise InputError(
            f"checkpoint {path} is of another run, which differs in: {', '.join(apart)}. Give the "
            "same, or another folder."
        )
    set_model_state_dict(model, versioned(model, theirs), options=_FULL)
    set_optimizer_state_dict(model, optimizer, content["optimizer"], options=_FULL)
    note_checkpoint(path)
    return content
