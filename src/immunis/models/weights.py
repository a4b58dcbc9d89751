"""Weights on disk: load them without running code from the file, check them."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.core.files import check_stored
from immunis.core.hashing import tensors_digest


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a local safetensors file or PyTorch state dict into a model; every tensor must fit.

    NaN, infinite parameters and numbers that overflow the model's dtype are refused; buffers may be
    infinite (masks).
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        state: Any = read_tensors(path)
    else:
        try:
            with path.open("rb") as file:
                check_stored(file)
                state = torch.load(file, map_location="cpu", weights_only=True)
        except FileNotFoundError as error:
            raise InputError(f"cannot read weights {path}: no such file.") from error
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
            raise InputError(f"weights {path} cannot be read: {str(error)[:200]}") from error
    state = _unwrapped(state)
    try:
        _check_values(model, state, path)
        try:
            model.load_state_dict(state)
        except ValueError:  # torchvision's MNASNet asks for its version, which files do not keep
            model.load_state_dict(versioned(model, state))
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"weights {path} belong to another model: {reason}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; compare it with the checksum in its metadata, if it has one."""
    try:
        with safe_open(path, "pt") as file:
            expected = (file.metadata() or {}).get("checksum")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise InputError(f"cannot read weights {path}: no such file.") from error
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        reason = f"it is not a safetensors file ({str(error)[:200]})"
        raise InputError(f"weights {path} cannot be read: {reason}.") from error
    if expected is not None and expected != tensors_digest(tensors):
        raise InputError(
            f"weights {path} do not match their checksum: the file was damaged or edited. Fetch it "
            "again, or make it again."
        )
    return tensors


def versioned(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Return a state with the versions of the model's modules, which some modules ask for."""
    found = OrderedDict(state)
    found._metadata = getattr(model.state_dict(), "_metadata", None)  # type: ignore[attr-defined]
    return found


def _unwrapped(state: Any) -> Any:
    """Return the state dict inside a training script's file, without name prefixes."""
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    for prefix in ("module.", "_orig_mod."):
        if isinstance(state, dict) and all(str(name).startswith(prefix) for name in state):
            state = {str(name).removeprefix(prefix): value for name, value in state.items()}
    return state


def _check_values(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, own in model.state_dict().items():
        if name not in state or not isinstance(own, Tensor):
            continue  # load_state_dict reports it
        tensor = state[name]
        if not torch.can_cast(tensor.dtype, own.dtype):
            raise InputError(f"weights {path}: {name} is {tensor.dtype}, expected {own.dtype}.")
        values = tensor.to(own.dtype)
        if values.isnan().any() or (name in parameters and values.isinf().any()):
            raise InputError(
                f"weights {path}: {name} holds NaN or infinities in {own.dtype}. Fetch or train it "
                "again."
            )
