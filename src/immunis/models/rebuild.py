"""What a library needs to build a model again, tried by building it.

timm and transformers make a model of a configuration and load weights into it by name. Where that
gives another model than the one at hand, nobody would be told; here it is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from immunis.core.errors import SettingsError
from immunis.core.records import Record
from immunis.core.settings import differing
from immunis.data.transforms import SCALINGS, SIZE
from immunis.models.cut import logits_of

KEPT = (
    "input_size", "fixed_input_size", "mean", "std", "interpolation", "crop_pct", "pool_size",
)  # fmt: skip


def config(
    model: nn.Module, record: Record | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a library needs to build the model again: its own configuration where it has one.

    timm does not keep the options a model was made with; they are given, or the recipe's.

    Raises:
        SettingsError: if timm or transformers would build another model so, or adapters of peft
            are not merged.
    """
    if hasattr(model, "peft_config"):
        raise SettingsError(
            "the model holds peft's adapters, and from_pretrained would give its layers random "
            "weights. Call merge_and_unload() on it, and export what that returns."
        )
    recipe = {} if record is None else record.settings.get("recipe", {})
    options = dict(recipe.get("model", {}).get("options", {}) if options is None else options)
    own: Any = getattr(model, "config", None)
    if callable(getattr(own, "to_dict", None)) and hasattr(model, "from_pretrained"):
        return {**_labelled(model, own).to_dict(), "architectures": [type(model).__name__]}
    pretrained: Any = getattr(model, "pretrained_cfg", None)
    if isinstance(pretrained, Mapping):
        own = {
            **{key: pretrained[key] for key in KEPT if pretrained.get(key) is not None},
            "num_classes": _classes(model),
            "first_conv": pretrained.get("first_conv"),
            "classifier": pretrained.get("classifier"),
            **(shown(recipe.get("data", {})) or {}),
        }
        if options.get("in_chans", 3) != 3:
            own["first_conv"] = None  # timm would adapt weights that fit
        _check_rebuilt(model, pretrained["architecture"], own, options)
        return {
            "architecture": pretrained["architecture"],
            "num_classes": _classes(model),
            "num_features": getattr(model, "num_features", None),
            "pretrained_cfg": own,
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
            made = _shapes(type(model)(own))
        return [key for key, shape in _shapes(model).items() if made.get(key) != shape]

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
    model: nn.Module, name: str, own: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Refuse what timm builds a model of other shapes, images or answers from."""
    import timm

    def seen(one: nn.Module) -> dict[str, Any]:
        return {**_shapes(one), "": getattr(getattr(one, "patch_embed", None), "img_size", None)}

    try:
        again = timm.create_model(name, pretrained_cfg=dict(own), **options)
    except Exception as error:  # options may be wrong in any way
        raise SettingsError(f"timm cannot build {name} with {dict(options)}: {error}") from error
    apart = differing(seen(model), seen(again))
    shape = options.get("in_chans", 3), *_image_size(model, own)
    if not apart and _answers_differ(model, again, shape):
        apart = ["its answers"]
    if apart:
        raise SettingsError(
            f"timm.create_model({name!r}) with {dict(options) or 'no options'} builds another "
            f"model (it differs in {apart[0] or 'the image size'}). Give export the options that "
            "this one was made with: export(..., options={...})."
        )


def _image_size(model: nn.Module, own: Mapping[str, Any]) -> Sequence[int]:
    fixed = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return tuple(own.get("input_size", (3, 224, 224)))[1:] if fixed is None else fixed


@torch.no_grad()
def _answers_differ(model: nn.Module, again: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a model with another's weights answers a random image otherwise."""
    model = copy.deepcopy(model).to("cpu", torch.float32).eval()
    again.load_state_dict(model.state_dict())
    image = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    try:
        one = logits_of(model(image))
    except Exception:  # not made for such images: it cannot be tried
        return False
    other = logits_of(again.eval()(image))
    return not torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max()))


def shown(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """How a recipe's images are shown, in timm's words; None for data of another kind."""
    if data.get("source") != "images":
        return None
    size, (mean, std) = data.get("size", SIZE), SCALINGS[data.get("scaling", "imagenet")]
    return {
        "input_size": [3, size, size], "mean": list(mean), "std": list(std),
        "interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "center",
    }  # fmt: skip
