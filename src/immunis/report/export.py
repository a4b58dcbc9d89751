"""Release a model as a Hugging Face folder: weights without pickle, configuration and card.

timm loads it with ``create_model("local-dir:FOLDER")``, transformers with ``from_pretrained``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.core.files import release
from immunis.core.hashing import tensors_digest
from immunis.core.records import Record
from immunis.core.version import __version__
from immunis.models.rebuild import config
from immunis.report.model_card import model_card


def weights(model: nn.Module, record: Record | None = None) -> bytes:
    """Return a model's state as safetensors; its metadata holds a checksum and the record."""
    metadata = {"format": "pt", "immunis": __version__}
    if record is not None:
        method = str(record.settings.get("method", ""))
        metadata |= {"record": record.digest(), "method": method, "name": record.name}
    shared: set[int] = set()
    state = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            held = f"a {type(tensor).__name__} ({name})"
            raise InputError(f"the model's state_dict() holds {held}; expected tensors only.")
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        state[name] = tensor.clone() if storage in shared else tensor
        shared.add(storage)
    return _in_order(save(state, {**metadata, "checksum": tensors_digest(state)}))


def _in_order(content: bytes) -> bytes:
    """Sort the metadata of safetensors, whose order is random, so that equal weights are equal."""
    start = 8 + int.from_bytes(content[:8], "little")
    head = json.loads(content[8:start])
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(content)[start:]))


def files(
    model: nn.Module, record: Record, options: Mapping[str, Any] | None = None
) -> dict[str, bytes | str]:
    """Return the files of a Hugging Face folder, by name."""
    own = config(model, record, options)
    built_by = "transformers" if "architectures" in own else "timm"
    library = None if "library" in own else built_by  # others name themselves
    return {
        "model.safetensors": weights(model, record),
        "config.json": json.dumps(own, indent=2, default=str) + "\n",
        "README.md": model_card(record, library=library),
        "record.json": record.to_file(),
    }


def export(
    model: nn.Module, record: Record, folder: str | Path, options: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write a model as a Hugging Face folder, with checksums, and return the files.

    ``options`` are what a timm model was created with, besides its name and number of classes; by
    default they are the recipe's.

    Raises:
        SettingsError: if timm would build another model with those options.
        OutputError: if the folder cannot be written; what was there before stays whole.
    """
    return release(folder, files(model, record, options))
