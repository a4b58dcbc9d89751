"""A recipe: a run described in TOML, with the data and the model that it describes."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from immunis.core.errors import InputError, ScaleWarning
from immunis.data import sources
from immunis.data.feed import check_length
from immunis.data.scale import ROWS, UNEVEN, standardised, unevenness
from immunis.data.task import Task, Tasks
from immunis.data.transforms import scaling_of
from immunis.methods import METHODS
from immunis.models.cut import Cut
from immunis.models.find_cut import cut
from immunis.models.pretrained import HUB, TIMM, shown_as
from immunis.models.weights import check_floats, read_tensors
from immunis.models.zoo import LIBRARIES, named_network, pretrained_mlp, small_cnn
from immunis.recipes.paths import FILES, TASKS, model_name, resolved
from immunis.theory.definition import TOLERANCE

NETWORKS = (*LIBRARIES, "network", "cnn")
TABLES = ("data", "model", "pretrain", "method", "training", "audit")
SOURCES: dict[str, Callable[..., Tasks]] = {
    "digits": sources.digits,
    "digit-parity": sources.digit_parity,
    "house-prices": sources.house_prices,
    "mnist-pair": sources.mnist_pair,
    "mnist-digits": sources.mnist_digits,
    "npz": sources.npz,
    "images": sources.images,
    "text": sources.text,
}
VARIANTS = 3  # trainings of a network that an audit compares, unless the recipe says otherwise
OWN = (
    "attacks",
    "methods",
    "variants",
    "originals",
    "threshold",
)  # of [audit]: all others are the effort


@dataclass(frozen=True)
class Recipe:
    """A checked recipe.

    Attributes:
        name: how the run is called.
        data: the source and its options.
        method: the method's name and settings; empty in a recipe that only measures.
        model: ``{"init": "identity" | "random"}``; ``{"weights": "layer.safetensors"}``;
            ``{"network": [128, 64]}``, a small network pre-trained on the primary task;
            ``{"cnn": [16, 32]}``, small convolutional stages for images; or
            ``{"timm": "resnet18"}`` (``torchvision``, ``transformers``) with ``pretrained`` or a
            ``checkpoint`` (a local file, ``package:NAME/PATH``, ``timm:NAME`` or
            ``hub:OWNER/NAME``; ``in_order`` and ``sha256`` as in ``load_weights``; ``sha256`` also
            of the weights in a folder of transformers),
            ``imagenet_head`` to keep the rows of an ImageNet head that the task needs, ``pooling``
            of a text encoder, the library's own ``options``, and ``head``, the name of its linear
            head where it cannot be guessed.
        audit: the fields of ``Effort``, ``attacks``, ``originals`` (pre-trainings), ``variants``
            (trainings of each defence), ``threshold`` (the score that no attacker may pass), and
            ``methods``: the defences to compare. Each is a table
            with a name, its settings, and ``label``, ``training`` and ``tried`` (settings tried for
            it) of its own. The recipe's own method joins them if it has a label or there are no
            others.
        pretrain: settings of ``Training`` on the primary task, before any defence; None for none.
        training: settings of ``Training`` for methods that train the network; None for none.
        seed: seeds the initial θ and the method.
        folder: where relative paths in the recipe start.
        allow_outside: whether they may lead out of it.
    """

    name: str
    data: Mapping[str, Any]
    method: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=lambda: {"init": "identity"})
    audit: Mapping[str, Any] = field(default_factory=dict)
    pretrain: Mapping[str, Any] | None = None
    training: Mapping[str, Any] | None = None
    seed: int = 0
    folder: Path = Path(".")
    allow_outside: bool = False

    @property
    def head(self) -> str | None:
        """The name of the network's head, if the recipe gives it."""
        return self.model.get("head")

    @property
    def attacks(self) -> Any:
        """The attacks of its audit: a preset, or names."""
        return self.audit.get("attacks", "standard")

    @property
    def effort(self) -> dict[str, Any]:
        """The effort of its audit."""
        return {k: v for k, v in self.audit.items() if k not in OWN}

    @property
    def tolerance(self) -> float:
        """How far the primary score may fall: the price that its own method was given."""
        return (self.training_for(self.method) or {}).get("tolerance", TOLERANCE)

    @property
    def originals(self) -> int:
        """How many times its audit pre-trains the original, each with another seed."""
        return self.audit.get("originals", 1)

    @property
    def variants(self) -> int:
        """How many networks its audit trains of each defence; originals take turns."""
        return self.audit.get("variants", max(VARIANTS, self.originals))

    @property
    def is_network(self) -> bool:
        """True if its model is a network, not a linear map."""
        return any(kind in self.model for kind in NETWORKS)

    @property
    def is_trained(self) -> bool:
        """True if its own method trains the network."""
        return self.training_for(self.method) is not None

    def training_for(self, table: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return [training] overridden by a method's own; None if the method trains nothing."""
        given = self.training is not None or "training" in table
        method = METHODS.get(table.get("name", ""))
        if not given and not (self.is_network and method is not None and method.solve is None):
            return None
        return {**(self.training or {}), **table.get("training", {})}

    def cut(self, model: nn.Module | Tensor, primary: Task) -> Cut:
        """Return a model of the recipe, cut into extractor and head."""
        return cut(model, primary.train.first(2), primary.outputs, self.head)

    def to_dict(self) -> dict[str, Any]:
        """Return what a record keeps of the recipe."""
        parts = {name: getattr(self, name) for name in TABLES} | {"data": self.shown}
        optional = ("pretrain", "training")  # an empty table is a choice
        given = {k: v for k, v in parts.items() if v or (v is not None and k in optional)}
        return {"name": self.name, **given, "seed": self.seed}

    @property
    def shown(self) -> dict[str, Any]:
        """Its data, with images prepared as its pre-trained network expects them.

        Size and scaling that the recipe gives stay as they are.
        """
        data, model = dict(self.data), self.model
        library = next((library for library in LIBRARIES if library in model), None)
        named = str(model.get("checkpoint", "")).startswith(TIMM)
        trained = model.get("pretrained", False) or "checkpoint" in model
        if data["source"] != "images" or library is None or not trained:
            return data
        if "size" in data and "scaling" in data:
            return data
        name = model["checkpoint"].removeprefix(TIMM) if named else model[library]
        known = shown_as(library, model_name(library, name, self.folder, self.allow_outside))
        if "mean" in known:
            data.setdefault("scaling", scaling_of(known["mean"], known["std"]))
        if "size" in known:
            data.setdefault("size", known["size"])
        return data

    def tasks(self, data_folder: str | None = None) -> Tasks:
        """Load the recipe's data; ``data_folder`` overrides where its files are looked for."""
        options = self.shown
        source = SOURCES[options.pop("source")]
        if source is sources.text:  # the model's own tokenizer
            named = options.get("tokenizer", self.model.get("transformers", ""))
            where = self.folder, self.allow_outside
            options["tokenizer"] = named and model_name("transformers", named, *where)
        if "folder" in inspect.signature(source).parameters:
            options["folder"] = data_folder or self._data_folder(options)
        tasks = source(**options)
        made_here = "init" in self.model or "network" in self.model  # it reads what we make it read
        if source is not sources.npz or "standardise" in options or not made_here:
            return tasks
        return _on_one_scale(tasks)

    def _data_folder(self, options: Mapping[str, Any]) -> str | None:
        """Return where the data that the recipe names lies; the same for every source of data.

        It is the recipe's ``folder``; or the folder of the recipe itself, if any is there that it
        names; else None, which means ``$IMMUNIS_DATA``, then ``~/.cache/immunis``.
        """
        tables = [table for key in TASKS for table in _tables(options.get(key))]
        named = [(key, options[key]) for key in TASKS if isinstance(options.get(key), str)]
        named += [(key, table[key]) for table in tables for key in FILES if key in table]
        if "folder" in options or named:
            folder = self._path("folder", options.get("folder", "."))
            paths = [resolved(key, name, folder, self.allow_outside) for key, name in named]
            if "folder" in options or any(path.exists() for path in paths):
                return str(folder)
        return None

    def extractor(self, primary: Task) -> nn.Module | Tensor:
        """Return what to immunize: identity, random, from a file, or a network."""
        model = self.model
        if "weights" in model:
            return _read_layer(self._path("weights", model["weights"]))
        if "network" in model:
            return pretrained_mlp(primary, model["network"], seed=self.seed)
        if "cnn" in model:
            return small_cnn(primary, model["cnn"], seed=self.seed)
        if self.is_network:
            library = next(library for library in LIBRARIES if library in model)
            file = model.get("checkpoint")
            network = named_network(
                library,
                model_name(library, model[library], self.folder, self.allow_outside),
                primary.outputs,
                pretrained=model.get("pretrained", False),
                weights=None if file is None else self._weights(file),
                in_order=model.get("in_order", False),
                sha256=model.get("sha256"),
                imagenet_head=primary.class_names if model.get("imagenet_head") else None,
                pooling=model.get("pooling"),
                options=model.get("options"),
                seed=self.seed,
            )
            if self.data["source"] == "text":
                check_length(network, primary.input_shape[-1])
            return network
        dimension = math.prod(primary.input_shape)
        if model.get("init", "identity") == "identity":
            return torch.eye(dimension, dtype=torch.float64)
        generator = torch.Generator().manual_seed(self.seed)
        theta = torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)
        return theta / dimension**0.5

    def _weights(self, given: str) -> str | Path:
        return given if given.startswith((TIMM, HUB)) else self._path("checkpoint", given)

    def _path(self, key: str, given: str) -> Path:
        return resolved(key, given, self.folder, self.allow_outside)


def _tables(given: Any) -> list[Mapping[str, Any]]:
    """Return the tables of single tasks of text: one, or a list of them."""
    listed = given if isinstance(given, list) else [given]
    return [table for table in listed if isinstance(table, Mapping)]


def _on_one_scale(tasks: Tasks) -> Tasks:
    """Return tasks on a table with columns of one scale, and say so if they were not."""
    primary = tasks.primary
    found = unevenness(primary.train.first(ROWS)) if len(primary.input_shape) == 1 else 1.0
    if found <= UNEVEN:
        return tasks
    warnings.warn(
        f"columns of {primary.name} differ in scale by a factor of {found:.2g}, so all inputs are "
        "standardised: each column less its mean, over its deviation, of the primary training "
        "rows. To keep them as they are, set standardise = false in [data].",
        ScaleWarning,
        stacklevel=2,
    )
    first, second, third = standardised(*tasks[:3])
    return Tasks(first, second, third)


def _read_layer(path: Path) -> nn.Linear:
    tensors = read_tensors(path)
    weight, bias = tensors.get("weight"), tensors.get("bias")
    fits = weight is not None and weight.ndim == 2
    if weight is None or not fits or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        told = f"{path} holds {shapes or 'nothing'}"
        wanted = "'weight' (out×in) and perhaps 'bias' (out) of nn.Linear"
        raise InputError(f"{told}; expected {wanted}.")
    for name, tensor in tensors.items():
        check_floats(tensor, name, path)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, dtype=weight.dtype)
    layer.load_state_dict({k: v for k, v in tensors.items() if k in ("weight", "bias")})
    return layer
