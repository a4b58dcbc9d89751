"""Release a model: weights without pickle, its configuration, and a card people can read.

The folder is what Hugging Face, timm and transformers expect: ``model.safetensors`` with a
metadata block, ``config.json`` and ``README.md``. timm loads it with
``create_model("local-dir:FOLDER")`` (or from the hub), transformers with ``from_pretrained``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from immunis._version import __version__
from immunis.datasets.pictures import shown
from immunis.errors import SettingsError
from immunis.features import tensors_digest
from immunis.files import release
from immunis.modelcard import model_card
from immunis.records import Record


def weights(model: nn.Module, record: Record | None = None) -> bytes:
    """A model's state as safetensors, with a checksum and what made it in the metadata block."""
    metadata = {"format": "pt", "immunis": __version__}
    if record is not None:
        metadata |= {
            "record": record.digest(),
            "method": str(record.settings.get("method", "")),
            "name": record.name,
        }
    shared: set[int] = set()
    state = {}
    for name, tensor in model.state_dict().items():
        tensor = tensor.detach().cpu().contiguous()
        state[name] = tensor.clone() if tensor.data_ptr() in shared else tensor
        shared.add(tensor.data_ptr())
    return _in_order(save(state, {**metadata, "checksum": tensors_digest(state)}))


def _in_order(content: bytes) -> bytes:
    """Sort the metadata of safetensors, whose order is random, so that equal weights are equal."""
    start = 8 + int.from_bytes(content[:8], "little")
    head = json.loads(content[8:start])
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(content)[start:]))


def config(
    model: nn.Module, record: Record | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a library needs to build the model again: its own configuration where it has one.

    timm does not keep the options a model was made with; they are given, or the recipe's.

    Raises:
        SettingsError: if timm would build another model so.
    """
    recipe = {} if record is None else record.settings.get("recipe", {})
    options = dict(recipe.get("model", {}).get("options", {}) if options is None else options)
    own: Any = getattr(model, "config", None)
    if callable(getattr(own, "to_dict", None)):
        return {**own.to_dict(), "architectures": [type(model).__name__]}
    pretrained: Any = getattr(model, "pretrained_cfg", None)
    if isinstance(pretrained, Mapping):
        keep = ("input_size", "mean", "std", "interpolation", "crop_pct", "pool_size")
        first, head = pretrained.get("first_conv"), pretrained.get("classifier")
        _check_rebuilt(model, pretrained["architecture"], options)
        return {
            "architecture": pretrained["architecture"],
            "num_classes": _classes(model),
            "num_features": getattr(model, "num_features", None),
            "pretrained_cfg": {
                **{key: pretrained[key] for key in keep if pretrained.get(key) is not None},
                "num_classes": _classes(model),
                "first_conv": first,
                "classifier": head,
                **(shown(recipe.get("data", {})) or {}),
            },
            **({"model_args": options} if options else {}),
        }
    return {"architectures": [type(model).__name__], "library": "torch"}


def _classes(model: nn.Module) -> int | None:
    """Outputs of a timm model's head, which may stand in place of the one it was made with."""
    head: Any = getattr(model, "get_classifier", lambda: None)()
    return getattr(head, "out_features", getattr(model, "num_classes", None))


def _check_rebuilt(model: nn.Module, name: str, options: Mapping[str, Any]) -> None:
    """Refuse options with which timm builds a model of other shapes, or for other images."""
    import timm

    def seen(one: nn.Module) -> dict[str, Any]:
        shapes = {key: tuple(value.shape) for key, value in one.state_dict().items()}
        return {**shapes, "": getattr(getattr(one, "patch_embed", None), "img_size", None)}

    try:
        again = timm.create_model(name, num_classes=_classes(model), **options)
    except Exception as error:  # options may be wrong in any way
        raise SettingsError(f"timm cannot build {name} with {dict(options)}: {error}") from error
    one, other = seen(model), seen(again)
    apart = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    if apart:
        raise SettingsError(
            f"timm.create_model({name!r}) with {dict(options) or 'no options'} builds another "
            f"model (it differs in {apart[0] or 'the image size'}). Give export the options that "
            'this one was made with: export(..., options={"img_size": ...}).'
        )


def files(
    model: nn.Module, record: Record, options: Mapping[str, Any] | None = None
) -> dict[str, bytes | str]:
    """The files of a Hugging Face style folder, by name."""
    return {
        "model.safetensors": weights(model, record),
        "config.json": json.dumps(config(model, record, options), indent=2, default=str) + "\n",
        "README.md": model_card(record),
        "record.json": record.to_file(),
    }


def export(
    model: nn.Module, record: Record, folder: str | Path, options: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write a model as a Hugging Face style folder, with checksums, and return the files.

    ``options`` are what a timm model was made with, beside its name and number of classes; the
    recipe's if left out.

    Raises:
        SettingsError: if timm would build another model with those options.
        OutputError: if the folder cannot be written; what was there before is left whole.
    """
    return release(folder, files(model, record, options))
