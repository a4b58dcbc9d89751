"""A model on disk: its weights, and what a library needs to build it again.

Weights are loaded without running code from the file. What a library needs is tried by building.
"""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from immunis.core.errors import InputError, SettingsError
from immunis.core.files import check_file, check_stored, open_regular
from immunis.core.hashing import tensors_digest
from immunis.core.records import Record
from immunis.core.settings import differing
from immunis.data.transforms import SIZE, mean_and_deviation
from immunis.models.positions import logits_of
from immunis.models.rebuild import described

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COUNTER = "num_batches_tracked"  # of BatchNorm
KEPT = ["input_size", "fixed_input_size", "mean", "std", "interpolation", "crop_pct", "pool_size"]


def load_weights(
    model: nn.Module, path: str | Path, in_order: bool = False, sha256: str | None = None
) -> None:
    """Load a local safetensors file or PyTorch state dict into a model; every tensor must fit.

    NaN, infinite parameters and numbers that overflow the model's dtype are refused; buffers may be
    infinite (masks). ``in_order`` takes tensors by their order, not by name, as a file of another
    library needs; BatchNorm's counters, which old files lack, stay as they are. ``sha256`` is what
    the file must hash to.
    """
    path = Path(path)
    if sha256 is not None:
        check_file(path, sha256)
    if path.suffix == ".safetensors":
        state: Any = read_tensors(path)
    else:
        try:
            with open_regular(path) as file:
                check_stored(file)
                state = torch.load(file, map_location="cpu", weights_only=True)
        except FileNotFoundError as error:
            raise InputError(f"cannot read weights {path}: no such file.") from error
        except pickle.UnpicklingError as error:  # torch's own words tell how to run what is in it
            raise InputError(
                f"weights {path} cannot be read: it is not a plain state dict of tensors. Save "
                "model.state_dict(), best as safetensors."
            ) from error
        except (OSError, RuntimeError, EOFError, ValueError) as error:
            raise InputError(f"weights {path} cannot be read: {str(error)[:200]}") from error
    state = _unwrapped(state)
    if in_order:
        state = _in_order(model, state, path)
    try:
        _check_values(model, state, path)
        try:
            model.load_state_dict(state)
        except ValueError:  # torchvision's MNASNet asks for its version, which files do not keep
            model.load_state_dict(versioned(model, state))
    except InputError:
        raise
    except (RuntimeError, TypeError, AttributeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"weights {path} belong to another model: {reason}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; compare it with the checksum in its metadata, if it has one."""
    try:
        open_regular(path).close()
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


def _in_order(model: nn.Module, state: Any, path: Path) -> dict[str, Tensor]:
    """Return a state under the model's own names, by order; refuse if numbers or shapes differ."""

    def counted(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: v for name, v in values.items() if not name.endswith(COUNTER)}

    own = model.state_dict()
    wanted, given = counted(own), counted(state if isinstance(state, Mapping) else {})
    if len(wanted) != len(given):
        found = f"weights {path} hold {len(given)} tensors, the model has {len(wanted)}"
        raise InputError(f"{found}. Give the weights of this architecture.")
    for (name, mine), (other, theirs) in zip(wanted.items(), given.items(), strict=True):
        if mine.shape != getattr(theirs, "shape", None):
            raise InputError(
                f"weights {path} belong to another model: {other} stands where {name} should, and "
                f"has another shape than {tuple(mine.shape)}."
            )
    return own | dict(zip(wanted, given.values(), strict=True))


def _unwrapped(state: Any) -> Any:
    """Return the state dict inside a training script's file, without name prefixes."""
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    for prefix in ("module.", "_orig_mod."):
        if isinstance(state, dict) and all(str(name).startswith(prefix) for name in state):
            state = {str(name).removeprefix(prefix): value for name, value in state.items()}
    return state


def check_floats(tensor: Tensor, name: str, path: Path) -> None:
    """Raise ``InputError`` for weights of another dtype than the common floats."""
    if tensor.dtype not in FLOATS:
        raise InputError(
            f"weights {path}: {name} is {tensor.dtype}; expected float16, bfloat16, float32 or "
            "float64. Undo the quantization and save the weights again."
        )


def _check_values(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, own in model.state_dict().items():
        if name not in state or not isinstance(own, Tensor):
            continue  # load_state_dict reports it
        tensor = state[name]
        if tensor.shape != own.shape:
            continue  # so does it, without reading the values: few may stand for many
        if own.is_floating_point():
            check_floats(tensor, name, path)
        elif not torch.can_cast(tensor.dtype, own.dtype):
            raise InputError(f"weights {path}: {name} is {tensor.dtype}; expected {own.dtype}.")
        values = tensor.to(own.dtype)
        if values.isnan().any() or (name in parameters and values.isinf().any()):
            raise InputError(
                f"weights {path}: {name} holds NaN or infinities in {own.dtype}. Fetch or train it "
                "again."
            )


def config(
    model: nn.Module, record: Record | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what a library needs to build the model again; refuse if that gives another model.

    timm does not keep the options of ``create_model``; by default they are the recipe's.
    """
    if hasattr(model, "peft_config"):
        raise SettingsError(
            "the model holds peft's adapters, and from_pretrained would give its layers random "
            "weights. Call merge_and_unload() on it, and export the result."
        )
    own_options, recipe = options, {} if record is None else record.settings.get("recipe", {})
    options = dict(recipe.get("model", {}).get("options", {}) if options is None else options)
    args = {"model_args": options} if options else {}
    own: Any = getattr(model, "config", None)
    if callable(getattr(own, "to_dict", None)) and hasattr(model, "from_pretrained"):
        return {**_fitting_config(model).to_dict(), "architectures": [type(model).__name__]}
    pretrained: Any = getattr(model, "pretrained_cfg", None)
    if isinstance(pretrained, Mapping):
        name, head = pretrained["architecture"], getattr(model, "get_classifier", lambda: None)()
        classes = getattr(head, "out_features", getattr(model, "num_classes", None))
        own = {key: pretrained[key] for key in KEPT if pretrained.get(key) is not None}
        own |= {key: pretrained.get(key) for key in ("first_conv", "classifier")}
        own |= {"num_classes": classes, **(shown(recipe.get("data", {})) or {})}
        if options.get("in_chans", 3) != 3:
            own["first_conv"] = None  # timm would adapt weights that fit
        _check_timm(model, name, own, options)
        features = getattr(model, "num_features", None)
        found = {"architecture": name, "num_classes": classes, "num_features": features}
        return {**found, "pretrained_cfg": own, **args}
    if named := recipe.get("model", {}).get("torchvision"):
        labels = _labels(model)
        return {"library": "torchvision", "architecture": named, "num_classes": labels, **args}
    return described(model, own_options)


def _labels(model: nn.Module) -> int | None:
    """Return the outputs of a model's last linear layer."""
    outputs = [m.out_features for m in model.modules() if isinstance(m, nn.Linear)]
    return outputs[-1] if outputs else None


def _shapes(model: nn.Module) -> dict[str, Any]:
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def _fitting_config(model: Any) -> Any:
    """Return a transformers configuration with as many labels as the head has now."""
    own = copy.deepcopy(model.config)

    def apart() -> list[str]:
        with torch.device("meta"):
            made = _shapes(type(model)(own))
        return [key for key, shape in _shapes(model).items() if made.get(key) != shape]

    try:
        if apart():
            own.num_labels = _labels(model)
        left = apart()
    except Exception:  # a class that needs more than its configuration
        return model.config
    if left:
        raise SettingsError(
            f"from_pretrained would build another {type(model).__name__} than this one (it differs "
            f"in {left[0]}). Change the model's config to fit it first."
        )
    return own


def _check_timm(
    model: nn.Module, name: str, own: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Refuse if timm builds a model with other shapes, image size or answers."""
    import timm

    def size(one: nn.Module) -> Any:
        return getattr(getattr(one, "patch_embed", None), "img_size", None)

    try:
        again = timm.create_model(name, pretrained_cfg=dict(own), **options)
    except Exception as error:  # options may be wrong in any way
        raise SettingsError(f"timm cannot build {name} with {dict(options)}: {error}") from error
    apart = differing({**_shapes(model), "": size(model)}, {**_shapes(again), "": size(again)})
    image = size(model) or own.get("input_size", (3, 224, 224))[1:]
    if not apart and _answers_differ(model, again, (options.get("in_chans", 3), *image)):
        apart = ["its answers"]
    if apart:
        raise SettingsError(
            f"timm.create_model({name!r}) with {dict(options) or 'no options'} builds another "
            f"model (it differs in {apart[0] or 'the image size'}). Give export the options that "
            "this one was made with: export(..., options={...})."
        )


@torch.no_grad()
def _answers_differ(model: nn.Module, again: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return True if a model with another's weights answers a random image differently."""
    model = copy.deepcopy(model).to("cpu", torch.float32).eval()
    again.load_state_dict(model.state_dict())
    image = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    try:
        one = logits_of(model(image))
    except Exception:  # the model takes other images: it cannot be tried
        return False
    other = logits_of(again.eval()(image))
    return not torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max()))


def shown(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how a recipe's images are prepared, in timm's words; None for other data."""
    if data.get("source") != "images":
        return None
    scaling: Any = data.get("scaling", "imagenet")
    scaling = scaling if isinstance(scaling, str) else tuple(map(tuple, scaling))
    size, (mean, std) = data.get("size", SIZE), mean_and_deviation(scaling)
    shape = {"input_size": [3, size, size], "mean": list(mean), "std": list(std)}
    return {**shape, "interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "center"}
