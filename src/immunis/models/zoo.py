"""Networks by name, from timm, torchvision or transformers, with weights or without.

And a small one trained on the spot, to have something to defend when none is at hand.
"""

from __future__ import annotations

import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from immunis.core.errors import InputError, SettingsError
from immunis.core.files import check_stored
from immunis.core.hashing import tensors_digest
from immunis.data.task import Task

FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
WORD = re.compile(r"[\w-]{1,100}")
LOADING = ("checkpoint_path", "trust_remote_code", "state_dict", "cache_dir", "code_revision")
LIBRARIES = ("timm", "torchvision", "transformers")


def named_network(
    library: str,
    name: str,
    classes: int,
    *,
    pretrained: bool = False,
    weights: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> nn.Module:
    """Build a network of a library by its name there, in evaluation mode.

    Args:
        library: ``"timm"``, ``"torchvision"`` or ``"transformers"``.
        name: the model's name; for transformers a folder or hub name of a sequence
            classifier.
        classes: number of primary classes, the width of the head.
        pretrained: fetch the library's weights of that name (needs a network), unless there are
            ``weights``.
        weights: a local file instead: safetensors, or a PyTorch state dict, which is read
            without unpickling objects.
        options: further keywords for the library.
        seed: draws what is not loaded.

    Raises:
        SettingsError: where the library is missing or does not know the name.
        InputError: where weights do not fit.
    """
    more, pretrained = dict(options or {}), pretrained and weights is None
    _check_options(library, more)
    with _weights_only(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            if library == "timm":
                import timm

                model = timm.create_model(name, pretrained=pretrained, num_classes=classes, **more)
            elif library == "torchvision":
                import torchvision

                own = {"weights": "DEFAULT"} if pretrained else {"num_classes": classes}
                model = torchvision.models.get_model(name, **{**own, **more})
                _fit_head(model, classes)
            else:
                model = _transformers(name, classes, pretrained, more)
        except ImportError as error:
            extra = "text" if library == "transformers" else "vision"
            raise SettingsError(
                f"{library} is not installed: pip install 'immunis[{extra}]'"
            ) from error
        except (RuntimeError, ValueError, TypeError, KeyError, OSError) as error:
            raise SettingsError(f"{library} cannot make {name!r}: {str(error)[:300]}") from error
    if weights is not None:
        load_weights(model, weights)
    return model.eval()


def _check_options(library: str, options: Mapping[str, Any]) -> None:
    """Let numbers and plain words through to a library, and nothing that loads or runs a file."""
    for key, value in options.items():
        plain = all(
            isinstance(one, int | float) or (isinstance(one, str) and WORD.fullmatch(one))
            for one in (value if isinstance(value, list | tuple) else [value])
        )
        if not plain or key in LOADING or key.startswith(("pretrained", "weights")):
            raise SettingsError(
                f"options of {library}: {key}={str(value)[:60]!r} is refused; expected numbers, "
                "true or false, or plain words, that load and run nothing."
            )


@contextmanager
def _weights_only() -> Iterator[None]:
    """Make every ``torch.load``, also a library's own, refuse to unpickle objects."""
    before = os.environ.get(FORCE)
    os.environ[FORCE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FORCE]
        else:
            os.environ[FORCE] = before


def _transformers(name: str, classes: int, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    if pretrained:
        return AutoModelForSequenceClassification.from_pretrained(
            name, num_labels=classes, use_safetensors=True, trust_remote_code=False, **options
        )
    config = AutoConfig.from_pretrained(
        name, num_labels=classes, trust_remote_code=False, **options
    )
    return AutoModelForSequenceClassification.from_config(config)


def _fit_head(model: nn.Module, classes: int) -> None:
    """Give a torchvision model a head of the wanted width, unless it has one."""
    linear = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise ValueError("it has no linear head.")
    name, head = linear[-1]
    if head.out_features != classes:
        parent, _, last = name.rpartition(".")
        new = nn.Linear(head.in_features, classes, bias=head.bias is not None)
        setattr(model.get_submodule(parent), last, new)


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a local safetensors file or state dict into a model; every tensor must fit.

    Raises:
        InputError: for a file that cannot be read, is of another model, or holds NaN, numbers
            that the model's dtype cannot hold, or infinite parameters (a buffer may be a mask
            of infinities).
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
        except ValueError:  # asks for versions, which files do not keep
            model.load_state_dict(versioned(model, state))
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"weights {path} are of another model: {reason}") from error


def versioned(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """A state of this very model with the versions of its modules, which tensors alone lack.

    Some modules (torchvision's MNASNet) refuse a state without.
    """
    found = OrderedDict(state)
    found._metadata = getattr(model.state_dict(), "_metadata", None)  # type: ignore[attr-defined]
    return found


def _unwrapped(state: Any) -> Any:
    """A state dict out of what training scripts keep around it, and without their prefixes."""
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
            continue  # load_state_dict says it better
        tensor = state[name]
        if not torch.can_cast(tensor.dtype, own.dtype):
            raise InputError(f"weights {path}: {name} is {tensor.dtype}, expected {own.dtype}.")
        values = tensor.to(own.dtype)
        if values.isnan().any() or (name in parameters and values.isinf().any()):
            raise InputError(
                f"weights {path}: {name} holds NaN or infinities in {own.dtype}; the model cannot "
                "be used. Fetch or train it again."
            )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file, and compare it with its checksum where it has one of ours.

    Raises:
        InputError: for a file that is missing, damaged, or no safetensors.
    """
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
            f"weights {path} do not match their checksum: the file was damaged or edited after it "
            "was written. Fetch it again, or make it again."
        )
    return tensors


def pretrained_mlp(
    task: Task, widths: Sequence[int] = (128, 64), epochs: int = 60, seed: int = 0
) -> nn.Sequential:
    """Train ReLU layers, a linear feature layer and a head on a task, by Adam.

    The last width is the number of features. Float32, in evaluation mode, the same on every
    run with the same seed.
    """
    if task.kind != "classification" or len(task.input_shape) != 1 or not widths:
        raise InputError("a small network is pre-trained on classes of flat inputs, with a width.")
    inputs, labels = task.train.tensors()
    x, y = inputs.float(), task.positions(labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        width = task.input_shape[0]
        for index, size in enumerate(widths):
            layers += [nn.Linear(width, size)] + ([nn.ReLU()] if index < len(widths) - 1 else [])
            width = size
        network = nn.Sequential(*layers, nn.Linear(width, task.outputs))
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-4)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
                optimizer.step()
    return network.requires_grad_(False).eval()
