"""Networks by name from timm, torchvision or transformers, small ones, and untrained ones."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from immunis.core.errors import InputError, SettingsError
from immunis.core.extras import need
from immunis.core.files import check_file
from immunis.core.places import packaged
from immunis.core.state import seeded, threads_for, variables
from immunis.data.task import Task
from immunis.data.text import here, no_bar, not_here
from immunis.models.cut import Cut
from immunis.models.imagenet import CLASSES, imagenet_rows, keep_outputs
from immunis.models.pretrained import (
    LOCAL,
    TIMM,
    named_file,
    need_torchvision,
    timm_file,
    timm_place,
)
from immunis.models.text import MODULES, text_encoder, weights_file
from immunis.models.weights import load_weights

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
    in_order: bool = False,
    sha256: str | None = None,
    imagenet_head: Sequence[str] | None = None,
    pooling: str | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> nn.Module:
    """Return a network of timm, torchvision or transformers in evaluation mode.

    ``name`` is the model's name; for transformers the folder (``package:NAME/PATH`` of one inside
    a Python package) or hub name of a sequence classifier. A folder of sentence-transformers, and
    any model with ``pooling``, is read as an encoder (``immunis.models.text``) with a new head.
    ``weights`` is a local safetensors file or PyTorch state dict, loaded by ``load_weights``; or
    ``hub:OWNER/NAME`` (``/FILE``), such a file of the Hugging Face hub; or ``timm:NAME``, what timm
    has under this name. Without it, ``pretrained`` takes the library's own. What has a name must be
    on this machine (``models.pretrained``). With ``imagenet_head``, the
    WordNet ids of the classes, these weights are of ImageNet's 1,000 classes, and their head is
    narrowed to the classes named. ``options`` are further keywords for the library.

    Raises:
        SettingsError: if the library is missing or does not know the name.
        InputError: if the weights do not fit, or are not on this machine.
    """
    options = dict(options or {})
    _check_options(library, options)
    if isinstance(weights, str) and weights.startswith(TIMM):
        name, pretrained, weights = _same_architecture(library, name, weights), True, None
        if sha256 is not None:
            check_file(timm_file(name), sha256)
        if in_order:
            raise SettingsError("in_order is for files; timm reads its own weights by name.")
    elif weights is not None:
        pretrained, weights = False, named_file(str(weights)) or weights
    elif sha256 is not None:
        check_file(weights_file(name), sha256)
    rows = None if imagenet_head is None else imagenet_rows(imagenet_head)
    outputs = classes if rows is None else CLASSES
    with weights_only(), seeded(seed):
        try:
            model = _built(library, name, outputs, pretrained, pooling, options)
        except (InputError, SettingsError):
            raise
        except (RuntimeError, ValueError, TypeError, KeyError, OSError, ImportError) as error:
            raise SettingsError(f"{library} cannot make {name!r}: {str(error)[:300]}") from error
    if weights is not None:
        load_weights(model, weights, in_order, sha256)
    if rows is not None:
        keep_outputs(model, rows)
    return model.eval()


def _check_options(library: str, options: Mapping[str, Any]) -> None:
    """Refuse every option that could load or run a file; pass numbers and plain words."""
    for key, value in options.items():
        plain = all(
            isinstance(one, int | float) or (isinstance(one, str) and WORD.fullmatch(one))
            for one in (value if isinstance(value, list | tuple) else [value])
        )
        if not plain or key in LOADING or key.startswith(("pretrained", "weights")):
            raise SettingsError(
                f"options of {library}: {key}={str(value)[:60]!r} is refused; expected numbers, "
                "true or false, or plain words. Options must not load or run files."
            )


def weights_only() -> AbstractContextManager[None]:
    """Make every ``torch.load``, also inside a library, refuse to unpickle objects."""
    return variables(TORCH_FORCE_WEIGHTS_ONLY_LOAD="1")


def _built(
    library: str,
    name: str,
    classes: int,
    pretrained: bool,
    pooling: str | None,
    options: dict[str, Any],
) -> nn.Module:
    own: dict[str, Any]
    if library == "timm":
        timm = need("timm")
        name, own = timm_place(name), {}
        if pretrained and not name.startswith(LOCAL):
            own = {"pretrained_cfg_overlay": {"file": str(timm_file(name))}}
        return timm.create_model(name, pretrained=pretrained, num_classes=classes, **own, **options)
    if library == "torchvision":
        torchvision = need("torchvision")
        if pretrained:
            need_torchvision(name)
        own = {"weights": "DEFAULT"} if pretrained else {"num_classes": classes}
        model = torchvision.models.get_model(name, **{**own, **options})
        linear = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
        if not linear:
            raise ValueError("it has no linear head.")
        place, head = linear[-1]
        if head.out_features != classes:
            model.set_submodule(place, nn.Linear(head.in_features, classes, head.bias is not None))
        return model
    transformers = need("transformers")
    name = str(packaged(name) or name)
    if pooling is not None or (Path(name) / MODULES).is_file():
        return text_encoder(name, classes, pooling=pooling, pretrained=pretrained, options=options)
    own = {"num_labels": classes, **here()}
    try:
        if pretrained:
            with no_bar():
                return transformers.AutoModelForSequenceClassification.from_pretrained(
                    name, use_safetensors=True, **own, **options
                )
        config = transformers.AutoConfig.from_pretrained(name, **own, **options)
    except OSError as error:
        raise not_here(name, error) from error
    return transformers.AutoModelForSequenceClassification.from_config(config)


def _same_architecture(library: str, name: str, weights: str) -> str:
    """Return the name of weights that timm has for a model; refuse those of another."""
    wanted = weights.removeprefix(TIMM)
    if library != "timm" or wanted.partition(".")[0] != name.partition(".")[0]:
        raise SettingsError(
            f"checkpoint {weights!r} is not of {library}'s {name!r}; expected timm:{name}, or "
            f"timm:{name} with a tag behind a dot."
        )
    return wanted


def pretrained_mlp(
    task: Task, widths: Sequence[int] = (128, 64), epochs: int = 60, seed: int = 0
) -> nn.Sequential:
    """Train ReLU layers, a linear feature layer of the last width and a head on a task, by Adam."""
    if task.kind != "classification" or len(task.input_shape) != 1 or not widths:
        raise InputError("a small network needs a classification task, flat inputs and a width.")
    inputs, labels = task.train.tensors()
    x, y = inputs.float(), task.positions(labels)
    with seeded(seed):
        layers: list[nn.Module] = []
        for width, size in itertools.pairwise([*task.input_shape, *widths]):
            layers += [nn.Linear(width, size), nn.ReLU()]
        network = nn.Sequential(*layers[:-1], nn.Linear(widths[-1], task.outputs))
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-4)
        work = 6.0 * 64 * sum(p.numel() for p in network.parameters())  # of a step
        with threads_for(work):
            for _ in range(epochs):
                for rows in torch.randperm(len(x)).split(64):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
                    optimizer.step()
    return network.requires_grad_(False).eval()


def small_cnn(task: Task, widths: Sequence[int], seed: int = 0) -> nn.Sequential:
    """Return stages of a 3×3 convolution, BatchNorm and ReLU, a mean over positions and a head.

    All stages but the first halve the image.
    """
    if task.kind != "classification" or len(task.input_shape) != 3 or not widths:
        raise InputError("a small network of images needs a classification task and a width.")
    with seeded(seed):
        stages = [
            nn.Sequential(
                nn.Conv2d(before, after, 3, 1 if place == 0 else 2, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            )
            for place, (before, after) in enumerate(
                itertools.pairwise([task.input_shape[0], *widths])
            )
        ]
        head = nn.Linear(widths[-1], task.outputs)
        return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()


def reinitialise(module: nn.Module, seed: int) -> None:
    """Draw every parameter anew, as its layer does at construction.

    Of parameters without a ``reset_parameters``, vectors called weight, scale or gamma become
    ones, vectors called bias or beta zeros, all others (class tokens, position embeddings) normal
    with standard deviation 0.02.
    """
    with seeded(seed), torch.no_grad():
        drawn: set[int] = set()
        for part in module.modules():
            reset: Any = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
                drawn |= {id(p) for p in part.parameters(recurse=False)}
        for name, parameter in module.named_parameters():
            if id(parameter) in drawn:
                continue
            word = name.rsplit(".", 1)[-1] if parameter.ndim <= 1 else ""
            if word in ("weight", "scale", "gamma"):
                parameter.fill_(1.0)
            elif word in ("bias", "beta"):
                parameter.zero_()
            else:
                parameter.normal_(std=0.02)


def untrained(source: Cut, seed: int) -> Cut:
    """Return a copy with fresh parameters, in evaluation mode: the control of every audit."""
    fresh = source.copy()
    reinitialise(fresh.model, seed)
    fresh.model.eval()
    return fresh
