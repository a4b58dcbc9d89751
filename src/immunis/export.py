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


def config(model: nn.Module, record: Record | None = None) -> dict[str, Any]:
    """What a library needs to build the model again: its own configuration where it has one.

    timm does not keep the options a model was made with; they come from the record's recipe.
    """
    recipe = {} if record is None else record.settings.get("recipe", {})
    options = dict(recipe.get("model", {}).get("options", {}))
    size = recipe.get("data", {}).get("size")
    own: Any = getattr(model, "config", None)
    if callable(getattr(own, "to_dict", None)):
        return {**own.to_dict(), "architectures": [type(model).__name__]}
    pretrained: Any = getattr(model, "pretrained_cfg", None)
    if isinstance(pretrained, Mapping):
        keep = ("input_size", "mean", "std", "interpolation", "crop_pct", "pool_size")
        first, head = pretrained.get("first_conv"), pretrained.get("classifier")
        shape = {"input_size": [3, size, size]} if size else {}
        return {
            "architecture": pretrained["architecture"],
            "num_classes": getattr(model, "num_classes", None),
            "num_features": getattr(model, "num_features", None),
            "pretrained_cfg": {
                **{key: pretrained[key] for key in keep if pretrained.get(key) is not None},
                "num_classes": getattr(model, "num_classes", None),
                "first_conv": first,
                "classifier": head,
                **shape,
            },
            **({"model_args": options} if options else {}),
        }
    return {"architectures": [type(model).__name__], "library": "torch"}


def files(model: nn.Module, record: Record) -> dict[str, bytes | str]:
    """The files of a Hugging Face style folder, by name."""
    return {
        "model.safetensors": weights(model, record),
        "config.json": json.dumps(config(model, record), indent=2, default=str) + "\n",
        "README.md": model_card(record),
        "record.json": record.to_file(),
    }


def export(model: nn.Module, record: Record, folder: str | Path) -> list[Path]:
    """Write a model as a Hugging Face style folder, with checksums, and return the files.

    Raises:
        OutputError: if the folder cannot be written; what was there before is left whole.
    """
    return release(folder, files(model, record))
