"""Networks by name from timm, torchvision or transformers, small ones, and untrained ones."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from immunis.core.errors import InputError, SettingsError
from immunis.data.task import Task
from immunis.models.cut import Cut
from immunis.models.weights import load_weights

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
    """Return a network of timm, torchvision or transformers in evaluation mode.

    ``name`` is the model's name; for transformers the folder or hub name of a sequence classifier.
    ``weights`` is a local safetensors file or PyTorch state dict. Without it, ``pretrained``
    downloads the library's own weights. ``options`` are further keywords for the library.

    Raises:
        SettingsError: if the library is missing or does not know the name.
        InputError: if the weights do not fit.
    """
    options, pretrained = dict(options or {}), pretrained and weights is None
    _check_options(library, options)
    with _weights_only(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = _built(library, name, classes, pretrained, options)
        except ImportError as error:
            pip = f"pip install 'immunis[{'text' if library == 'transformers' else 'vision'}]'"
            raise SettingsError(f"{library} is not installed: {pip}") from error
        except (RuntimeError, ValueError, TypeError, KeyError, OSError) as error:
            raise SettingsError(f"{library} cannot make {name!r}: {str(error)[:300]}") from error
    if weights is not None:
        load_weights(model, weights)
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


@contextmanager
def _weights_only() -> Iterator[None]:
    """Make every ``torch.load``, also inside a library, refuse to unpickle objects."""
    before = os.environ.get(FORCE)
    os.environ[FORCE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FORCE]
        else:
            os.environ[FORCE] = before


def _built(
    library: str, name: str, classes: int, pretrained: bool, options: dict[str, Any]
) -> nn.Module:
    if library == "timm":
        import timm

        return timm.create_model(name, pretrained=pretrained, num_classes=classes, **options)
    if library == "torchvision":
        import torchvision

        own = {"weights": "DEFAULT"} if pretrained else {"num_classes": classes}
        model = torchvision.models.get_model(name, **{**own, **options})
        linear = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
        if not linear:
            raise ValueError("it has no linear head.")
        place, head = linear[-1]
        if head.out_features != classes:
            model.set_submodule(place, nn.Linear(head.in_features, classes, head.bias is not None))
        return model
    from transformers import AutoConfig, AutoModelForSequenceClassification

    own = {"num_labels": classes, "trust_remote_code": False}
    if pretrained:
        return AutoModelForSequenceClassification.from_pretrained(
            name, use_safetensors=True, **own, **options
        )
    config = AutoConfig.from_pretrained(name, **own, **options)
    return AutoModelForSequenceClassification.from_config(config)


def pretrained_mlp(
    task: Task, widths: Sequence[int] = (128, 64), epochs: int = 60, seed: int = 0
) -> nn.Sequential:
    """Train ReLU layers, a linear feature layer of the last width and a head on a task, by Adam."""
    if task.kind != "classification" or len(task.input_shape) != 1 or not widths:
        raise InputError("a small network needs a classification task, flat inputs and a width.")
    inputs, labels = task.train.tensors()
    x, y = inputs.float(), task.positions(labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for width, size in itertools.pairwise([*task.input_shape, *widths]):
            layers += [nn.Linear(width, size), nn.ReLU()]
        network = nn.Sequential(*layers[:-1], nn.Linear(widths[-1], task.outputs))
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-4)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
                optimizer.step()
    return network.requires_grad_(False).eval()


def reinitialise(module: nn.Module, seed: int) -> None:
    """Draw every parameter anew, as its layer does at construction.

    Of parameters without a ``reset_parameters``, vectors called weight, scale or gamma become
    ones, vectors called bias or beta zeros, all others (class tokens, position embeddings) normal
    with standard deviation 0.02.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
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
