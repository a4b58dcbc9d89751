"""What timm or transformers needs to build a model again, tried by building it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from immunis.core.errors import SettingsError
from immunis.core.records import Record
from immunis.core.settings import differing
from immunis.data.transforms import SCALINGS, SIZE
from immunis.models.cut import logits_of

KEPT = ["input_size", "fixed_input_size", "mean", "std", "interpolation", "crop_pct", "pool_size"]


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
    recipe = {} if record is None else record.settings.get("recipe", {})
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
    return {"architectures": [type(model).__name__], "library": "torch"}


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
    size, (mean, std) = data.get("size", SIZE), SCALINGS[data.get("scaling", "imagenet")]
    shape = {"input_size": [3, size, size], "mean": list(mean), "std": list(std)}
    return {**shape, "interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "center"}
