"""Release a model: weights without pickle, its configuration, and a card people can read.

The folder is what Hugging Face, timm and transformers expect: ``model.safetensors`` with a
metadata block, ``config.json`` and ``README.md``. timm loads it with
``create_model("local-dir:FOLDER")`` (or from the hub), transformers with ``from_pretrained``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from immunis._version import __version__
from immunis.datasets.pictures import shown
from immunis.errors import InputError, SettingsError
from immunis.features import tensors_digest
from immunis.files import release
from immunis.modelcard import model_card
from immunis.records import Record
from immunis.settings import differing


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
        if not isinstance(tensor, Tensor):
            raise InputError(
                f"the model's state holds a {type(tensor).__name__} ({name}), and safetensors "
                "holds tensors alone. Leave it out of state_dict()."
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


def config(
    model: nn.Module, record: Record | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a library needs to build the model again: its own configuration where it has one.

    timm does not keep the options a model was made with; they are given, or the recipe's.

    Raises:
        SettingsError: if timm or transformers would build another model so.
    """
    recipe = {} if record is None else record.settings.get("recipe", {})
    options = dict(recipe.get("model", {}).get("options", {}) if options is None else options)
    own: Any = getattr(model, "config", None)
    if callable(getattr(own, "to_dict", None)) and hasattr(model, "from_pretrained"):
        return {**_labelled(model, own).to_dict(), "architectures": [type(model).__name__]}
    pretrained: Any = getattr(model, "pretrained_cfg", None)
    if isinstance(pretrained, Mapping):
        keep = ("input_size", "mean", "std", "interpolation", "crop_pct", "pool_size")
        first, head = pretrained.get("first_conv"), pretrained.get("classifier")
        channels = options.get("in_chans", 3)
        _check_rebuilt(model, pretrained, channels, options)
        return {
            "architecture": pretrained["architecture"],
            "num_classes": _classes(model),
            "num_features": getattr(model, "num_features", None),
            "pretrained_cfg": {
                **{key: pretrained[key] for key in keep if pretrained.get(key) is not None},
                "num_classes": _classes(model),
                "first_conv": first if channels == 3 else None,  # else timm adapts what fits
                "classifier": head,
                **(shown(recipe.get("data", {})) or {}),
            },
            **({"model_args": options} if options else {}),
        }
    if named := recipe.get("model", {}).get("torchvision"):
        found = {"library": "torchvision", "architecture": named, "num_classes": _labels(model)}
        return {**found, **({"model_args": options} if options else {})}
    return {"architectures": [type(model).__name__], "library": "torch"}


def _classes(model: nn.Module) -> int | None:
    """Outputs of a timm model's head, which may stand in place of the one it was made with."""
    head: Any = getattr(model, "get_classifier", lambda: None)()
    return getattr(head, "out_features", getattr(model, "num_classes", None))


def _labels(model: nn.Module) -> int | None:
    """Outputs of a model's last linear layer, its head as a rule."""
    linear = [m.out_features for m in model.modules() if isinstance(m, nn.Linear)]
    return linear[-1] if linear else None


def _shapes(model: nn.Module) -> dict[str, Any]:
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def _labelled(model: Any, own: Any) -> Any:
    """A transformers model's configuration, with as many labels as its head now has.

    Raises:
        SettingsError: where that configuration makes a model of other shapes.
    """
    own = copy.deepcopy(own)

    def apart() -> list[str]:
        with torch.device("meta"):
            return differing(_shapes(model), _shapes(type(model)(own)))

    try:
        if apart():
            own.num_labels = _labels(model)
        left = apart()
    except Exception:  # a class that is not made of its configuration alone: it knows best
        return model.config
    if left:
        raise SettingsError(
            f"from_pretrained would build another {type(model).__name__} than this one (it differs "
            f"in {left[0]}). Change the model's config to fit it first."
        )
    return own


def _check_rebuilt(
    model: nn.Module, pretrained: Mapping[str, Any], channels: int, options: Mapping[str, Any]
) -> None:
    """Refuse options with which timm builds a model of other shapes, images or answers."""
    import timm

    name = pretrained["architecture"]

    def seen(one: nn.Module) -> dict[str, Any]:
        return {**_shapes(one), "": getattr(getattr(one, "patch_embed", None), "img_size", None)}

    try:
        again = timm.create_model(name, num_classes=_classes(model), **options)
    except Exception as error:  # options may be wrong in any way
        raise SettingsError(f"timm cannot build {name} with {dict(options)}: {error}") from error
    apart = differing(seen(model), seen(again))
    if not apart and _answers_differ(model, again, (channels, *_image_size(model, pretrained))):
        apart = ["its answers"]
    if apart:
        raise SettingsError(
            f"timm.create_model({name!r}) with {dict(options) or 'no options'} builds another "
            f"model (it differs in {apart[0] or 'the image size'}). Give export the options that "
            'this one was made with: export(..., options={"img_size": ...}).'
        )


def _image_size(model: nn.Module, pretrained: Mapping[str, Any]) -> Sequence[int]:
    own = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return tuple(pretrained.get("input_size", (3, 224, 224)))[1:] if own is None else own


@torch.no_grad()
def _answers_differ(model: nn.Module, again: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a model with another's weights answers a random image otherwise."""
    model = copy.deepcopy(model).to("cpu", torch.float32).eval()
    again.load_state_dict(model.state_dict())
    image = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    try:
        one = model(image)
    except Exception:  # not made for such images: it cannot be tried
        return False
    other = again.eval()(image)
    return not torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max()))


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
