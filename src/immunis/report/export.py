"""Release a model as a Hugging Face folder: weights without pickle, configuration and card.

timm loads it with ``create_model("local-dir:FOLDER")``, transformers with ``from_pretrained``,
sentence-transformers with ``SentenceTransformer(FOLDER)``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from immunis.core.errors import InputError
from immunis.core.hashing import tensors_digest
from immunis.core.records import Record, __version__
from immunis.core.releases import release
from immunis.models.text import TextEncoder, files_of, inside_of
from immunis.models.weights import config
from immunis.report.loading_code import section
from immunis.report.model_card import model_card
from immunis.report.text import lost_primary


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
            raise InputError(
                f"the model's state_dict() holds a {type(tensor).__name__} ({name}); expected "
                "tensors only."
            )
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
    """Return the files of a Hugging Face folder, by name; of an encoder, sentence-transformers'."""
    if isinstance(model, TextEncoder):
        place = Path(inside_of(model))
        found = files_of(model) | {str(place / "model.safetensors"): weights(model.body, record)}
        if model.head is not None:  # no part of the embedding
            found["head.safetensors"] = weights(model.head, record)
        readme = model_card(record, library="sentence-transformers")
        found["README.md"] = f"{readme}\n{section({}, encoder=True)}"
        return found | {"record.json": record.to_file()}
    own = config(model, record, options)
    built_by = "transformers" if "architectures" in own else "timm"
    library = None if "library" in own else built_by  # others name themselves
    return {
        "model.safetensors": weights(model, record),
        "config.json": json.dumps(own, indent=2, default=str) + "\n",
        "README.md": f"{model_card(record, library=library)}\n{section(own)}",
        "record.json": record.to_file(),
    }


def export(
    model: nn.Module,
    record: Record,
    folder: str | Path,
    options: Mapping[str, Any] | None = None,
    *,
    allow_broken: bool = False,
) -> list[Path]:
    """Write a model as a Hugging Face folder, with checksums, and return the files.

    A model that lost its primary task is refused, unless ``allow_broken``.

    ``options`` are what a timm model was created with, besides its name and number of classes; by
    default they are the recipe's. Of a model of your own class they are its keywords.

    Raises:
        InputError: if the record says that the model lost its primary task.
        SettingsError: if timm, or the class, would build another model with those options.
        OutputError: if the folder cannot be written; what was there before stays whole.
    """
    if not allow_broken and (lost := lost_primary(record)):
        raise InputError(f"{lost} Nothing was written. Give allow_broken=True to write it anyway.")
    return release(folder, files(model, record, options))
